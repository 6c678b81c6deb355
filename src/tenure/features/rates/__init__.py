"""Rates: what happened in each queue, by minute and by hour."""

from tenure.features.feature import Feature
from tenure.features.rates import data
from tenure.features.rates.data import ListRates

FEATURE = Feature(finders={ListRates: data.list_rates})
