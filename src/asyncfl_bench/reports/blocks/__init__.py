"""Blocks of pages: functions, or settings with a call, that return tables, figures and headings of a page."""

# ruff: noqa: F401 (pages of papers import blocks from here)

from .clients import KeptUploads, client_accuracy, real_clients, straggler_accuracy
from .comparisons import Cost, Overall
from .curves import Curves, HeatMaps, MeasureBySetting, MetricsOfSeries
from .gantt import TimelineFigure
from .mse import error_parts
from .tables import Accuracies, Counts, SearchTable, Values, WallSeconds, staleness
