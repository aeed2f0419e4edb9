"""Every error the project raises on purpose, named by what its receiver can do.

RetrievalError
├── InputError              the caller's input is wrong: correct it and call again (exit code 2)
│   ├── CardError             a card file; names the file and the line
│   └── SettingsError         a setting, an environment variable or ``serve_config.yaml``
├── WorkError               the input was right, the work failed (exit code 1)
│   ├── ModelError            a model cannot be fetched, verified or loaded
│   └── StoreError            a store or a generation cannot be read or written
└── StageUnavailable        a pipeline stage cannot answer this request: degrade, and say why
"""

from __future__ import annotations


class RetrievalError(Exception):
    """Root of the tree: catch it where any of the project's failures is handled alike."""


class InputError(RetrievalError):
    """The caller's input is wrong; calling again with the same input fails again."""


class CardError(InputError):
    """A card file is invalid.

    Args:
        path: the file, as the editor would open it.
        line: 1-based line of the fault.
        problem: what is wrong there and how to mend it.
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


class SettingsError(InputError):
    """A setting has an unknown name or an impossible value."""


class WorkError(RetrievalError):
    """The work failed although the input was right."""


class ModelError(WorkError):
    """A model cannot be fetched, verified or loaded."""


class StoreError(WorkError):
    """A store or a generation cannot be read or written."""


class StageUnavailable(RetrievalError):
    """A stage cannot answer this request; the pipeline falls to the tier below.

    Args:
        stage: ``bm25``, ``dense`` or ``rerank``.
        reason: a short, stable word for the body, the span and the metric (``timeout``).
        detail: a sentence for the operator's log. Never holds the query or a passage.
    """

    def __init__(self, stage: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{stage} is unavailable: {reason}{f' ({detail})' if detail else ''}")
        self.stage = stage
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[StageUnavailable], tuple[str, str, str]]:
        # The default rebuilds an exception from its message alone, and this one crosses processes.
        return (type(self), (self.stage, self.reason, self.detail))
