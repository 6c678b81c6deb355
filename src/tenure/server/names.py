"""Names as they come in requests."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tenure.job import MAX_NAME

# Only for the description: what is stored is checked, too, in one place for all engines.
NO_NUL = {"pattern": "^[^\\u0000]*$"}

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, extra_json_schema=NO_NUL)]
Label = Annotated[str, Meta(max_length=MAX_NAME, extra_json_schema=NO_NUL)]
