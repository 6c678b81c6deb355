"""Workers that report themselves."""

from tenure.features.feature import Feature
from tenure.features.live_workers import data
from tenure.features.live_workers.data import Beat, ListWorkers

FEATURE = Feature(operations=(Beat,), finders={ListWorkers: data.list_workers})
