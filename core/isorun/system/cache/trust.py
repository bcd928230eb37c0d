"""Ownership checks: a lowered model or an engine is code, so the cache uses only files that no other user can write.

Files are trusted if they belong to this user or root and nobody else can write to them. Everything from the cache's
root down is checked; the folders above it are not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from functools import cache
from pathlib import Path

from isorun.errors import CacheError
from isorun.system import portable

ENVIRONMENT_VARIABLE = "ISORUN_CACHE_TRUST"
_ANY = "any"
_ROOT = 0


def why_distrusted(status: os.stat_result, uid: int, private_groups: Collection[int] = ()) -> str:
    """Why a file or folder may have been written by another user; empty if not.

    A sticky folder may be writable by others: they can only replace their own files, which are not trusted.

    Args:
        status: what ``stat`` returned for it.
        uid: the user of the cache.
        private_groups: groups without other members.
    """
    if status.st_uid not in (uid, _ROOT):
        return f"belongs to {_user(status.st_uid)}"
    others = stat.S_IWOTH | (0 if status.st_gid in private_groups else stat.S_IWGRP)
    if status.st_mode & others and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return f"is writable by other users (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def check(path: Path) -> None:
    """Raise ``CacheError``, with the owner and the remedy, unless a file or folder is trusted or does not exist."""
    try:
        status = path.lstat()
        check_status(path, status)
        if stat.S_ISLNK(status.st_mode):
            check_status(path, path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError as error:
        raise CacheError(
            f"The cache cannot read {path} ({error.strerror}). Choose another with cache_dir= or $ISORUN_CACHE_DIR, or "
            "let its owner share it with `chmod -R a+rX`"
        ) from error


def check_status(path: Path, status: os.stat_result) -> None:
    """As :func:`check`, for a file whose status is known."""
    if not portable.HAS_OWNERS:
        return
    if stat.S_ISLNK(status.st_mode):  # its mode is always 0777; the owner decides where it leads
        why = "" if status.st_uid in (os.geteuid(), _ROOT) else f"is a link of {_user(status.st_uid)}"
    else:
        why = why_distrusted(status, os.geteuid())
    if not why or not why_distrusted(status, os.geteuid(), _private_groups()) or _trusts_any():
        return
    raise CacheError(
        f"The cache does not use {path}: it {why}, and its content would run as {_user(os.geteuid())}. Choose another "
        f"cache with cache_dir= or $ISORUN_CACHE_DIR; or change the owner and mode (chown, chmod go-w); or, if you "
        f"trust everybody who can write there, set {ENVIRONMENT_VARIABLE}={_ANY}."
    )


def _trusts_any() -> bool:
    value = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if value not in ("", _ANY):
        raise CacheError(f"{ENVIRONMENT_VARIABLE} must be {_ANY!r} or unset, got {value!r}")
    return value == _ANY


@cache
def _private_groups() -> frozenset[int]:
    """The group with this user's name and no other members, as distributions with a umask of 002 create."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return frozenset()
    private = user.pw_uid != _ROOT and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return frozenset({user.pw_gid} if private else ())


def _user(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"
