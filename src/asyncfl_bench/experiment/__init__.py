"""One run from checked settings: built, driven, saved, resumed, or recognised as finished already.

Importing this loads neither torch nor data; ``execute`` does, once it has something to run.
"""

from .execute import execute
from .result import RunResult, finished_result, refuse_other_data
from .stopping import SCHEDULER_SIGNALS

__all__ = ["SCHEDULER_SIGNALS", "RunResult", "execute", "finished_result", "refuse_other_data"]
