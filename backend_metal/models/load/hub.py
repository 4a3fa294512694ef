"""The Hugging Face hub: downloads into its client's cache, with errors in an operator's words."""

from __future__ import annotations

import logging
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from backend_metal.models.load.progress import DownloadProgress, NoProgress

logger = logging.getLogger(__name__)

GB = 10**9
CLIENTS_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]
"""What its HTTP client raises when a line breaks: which client that is, is not the same in all of
its versions."""
# It prints its warnings itself, and once more by whoever prints those of all.
logging.getLogger("huggingface_hub").handlers.clear()


def check_room(model: str, commit: str, patterns: Sequence[str]) -> None:
    """Raises ``ValueError`` when what is not in the cache yet has no room on its disk."""
    try:
        files = snapshot_download(
            model,
            revision=commit,
            allow_patterns=list(patterns),
            dry_run=True,
            tqdm_class=NoProgress,
        )
    except (DryRunError, LocalEntryNotFoundError, HfHubHTTPError):
        # The hub can't be reached: nothing will be downloaded, and whoever tries says why.
        return
    needed = sum(file.file_size or 0 for file in files if file.will_download)
    if not needed:
        return
    free = shutil.disk_usage(constants.HF_HUB_CACHE).free
    if needed > free:
        raise ValueError(
            f"the disk of {platform.node()} has no room for {model}: {needed / GB:.2f} GB are to "
            f"be downloaded, and {constants.HF_HUB_CACHE} has {free / GB:.2f} GB free; delete "
            "models that nobody uses (`hf cache ls`, `hf cache rm`), or set HF_HUB_CACHE to a "
            "folder on another disk"
        )


def download(
    model: str,
    revision: str | None,
    patterns: Sequence[str],
    progress: type[DownloadProgress] = DownloadProgress,
) -> Path:
    """The snapshot of ``model`` with the files that match. Raises ``ValueError`` saying what can't
    be had."""
    wanted = f"{model!r} at {revision!r}" if revision else repr(model)
    logger.info("looking for %s in the Hugging Face cache and hub", wanted)
    try:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=list(patterns),
                tqdm_class=progress,
            )
        )
    except HFValidationError as error:
        raise ValueError(f"model {model!r} is neither a directory nor a hub id: {error}") from error
    except GatedRepoError as error:
        raise ValueError(
            f"model {model!r} is gated: accept its terms on the hub and log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"model {model!r} is neither a local directory nor on the hub (or it is private)"
        ) from error
    except RevisionNotFoundError as error:
        raise ValueError(
            f"engine.revision must be a branch, tag or full commit of {model} on the hub, not "
            f"{revision!r}"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError) as error:
        raise ValueError(
            f"model {wanted} is neither a local directory nor in the Hugging Face cache, and the "
            f"hub can't be reached: {_first_line(error)}"
        ) from error
    except (CLIENTS_ERROR, OSError) as error:
        raise ValueError(
            f"the download of {wanted} was broken off: {_first_line(error)}; files that are whole "
            "are kept, and another attempt gets the others"
        ) from error


def _first_line(error: Exception) -> str:
    """What happened, without what the hub's client thinks of it."""
    return str(error).partition("\n")[0].removeprefix("Got: ")
