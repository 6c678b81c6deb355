"""What can go wrong, with the codes and words of a real cluster."""

from __future__ import annotations

DESCRIPTIONS = {
    1000: "Operation failed",
    1007: "Transaction is too old to perform reads or be committed",
    1009: "Request for future version",
    1020: "Transaction not committed due to conflict with another transaction",
    1021: "Transaction may or may not have committed",
    1025: "Operation aborted because the transaction was cancelled",
    1031: "Operation aborted because the transaction timed out",
    1032: "Too many watches currently set",
    1034: "Watches cannot be set if read your writes is disabled",
    1036: "Read or wrote an unreadable key",
    1037: "Storage process does not have recent mutations",
    1039: "The protocol version of the cluster has changed",
    1101: "Asynchronous operation cancelled",
    2000: "Invalid API call",
    2004: "Key outside legal range",
    2005: "Range begin key larger than end key",
    2006: "Option set with an invalid value",
    2010: "Transaction already has a read version set",
    2011: "Version not valid",
    2012: "Range limits not valid",
    2017: "Operation issued while a commit was outstanding",
    2020: "Transaction does not have a valid commit version",
    2021: "Transaction is read-only and therefore does not have a commit version",
    2101: "Transaction exceeds byte limit",
    2102: "Key length exceeds limit",
    2103: "Value length exceeds limit",
    2210: "EXACT streaming mode requires limits, but none were given",
}

TOO_OLD = 1007
FUTURE_VERSION = 1009
NOT_COMMITTED = 1020
UNKNOWN_RESULT = 1021
CANCELLED = 1025
TIMED_OUT = 1031
TOO_MANY_WATCHES = 1032
WATCHES_DISABLED = 1034
UNREADABLE = 1036
PROCESS_BEHIND = 1037
CLUSTER_VERSION_CHANGED = 1039
FUTURE_CANCELLED = 1101
INVALID_OPERATION = 2000
OUTSIDE_LEGAL_RANGE = 2004
INVERTED_RANGE = 2005
INVALID_OPTION_VALUE = 2006
READ_VERSION_ALREADY_SET = 2010
VERSION_INVALID = 2011
RANGE_LIMITS_INVALID = 2012
USED_DURING_COMMIT = 2017
NO_VALID_VERSION = 2020
NO_COMMIT_VERSION = 2021
TRANSACTION_TOO_LARGE = 2101
KEY_TOO_LARGE = 2102
VALUE_TOO_LARGE = 2103
EXACT_WITHOUT_LIMIT = 2210

MAYBE_COMMITTED = frozenset({UNKNOWN_RESULT, CLUSTER_VERSION_CHANGED})
RETRYABLE_NOT_COMMITTED = frozenset({NOT_COMMITTED, TOO_OLD, FUTURE_VERSION, PROCESS_BEHIND})


class FDBError(Exception):
    """An error of the key-value API; `code` says which."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def description(self) -> str:
        return DESCRIPTIONS.get(self.code, "UNKNOWN_ERROR")

    def __str__(self) -> str:
        return f"{self.description} ({self.code})"

    def __repr__(self) -> str:
        return f"FDBError({self.code})"


class ErrorPredicates:
    """What an error says about the transaction."""

    def is_maybe_committed(self, error: FDBError) -> bool:
        return error.code in MAYBE_COMMITTED

    def is_retryable_not_committed(self, error: FDBError) -> bool:
        return error.code in RETRYABLE_NOT_COMMITTED

    def is_retryable(self, error: FDBError) -> bool:
        return self.is_maybe_committed(error) or self.is_retryable_not_committed(error)


predicates = ErrorPredicates()
