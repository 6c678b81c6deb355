"""The audit log: who changed what, when and why."""

from tenure.features.audit import data
from tenure.features.audit.data import ListAudit
from tenure.features.feature import Feature

FEATURE = Feature(finders={ListAudit: data.list_audit})
