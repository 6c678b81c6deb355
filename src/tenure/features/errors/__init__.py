"""Error groups: failures of the same cause are counted together."""

from tenure.features.errors import data
from tenure.features.errors.data import ListErrors, MuteError
from tenure.features.feature import Feature

FEATURE = Feature(
    operations=(MuteError,), counts={"error": data.is_count}, finders={ListErrors: data.list_errors}
)
