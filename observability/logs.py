"""One log format for every Wattmesh process: key=value for people, JSON for programs.

Nothing here ever receives a request body: no Python stands in the path of a prompt, and the
processes that do read metadata log names, counts and reasons only.
"""

import logging
import sys

import structlog


def configure_logs(level: str = "info", *, as_json: bool = False) -> None:
    """Set up structlog for this process; logs go to standard error."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
