"""Blocks of pages. A block is a few settings; called with a page it returns tables, figures and headings."""

# ruff: noqa: F401 (pages of papers import blocks from here)

from .clients import ClientAccuracy, KeptUploads, RealClients, Stragglers
from .comparisons import Cost, Overall
from .curves import Curves, HeatMaps, MeasureBySetting, MetricsOfSeries
from .gantt import TimelineFigure
from .mse import ErrorParts
from .tables import Accuracies, Averages, Counts, SearchTable, Staleness, Values, WallSeconds
