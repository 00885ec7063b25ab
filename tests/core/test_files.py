import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from etag.core.errors import EtagError
from etag.core.files import locked, user_cache, write_atomically

POSIX_ONLY = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog")


@pytest.mark.parametrize("content", ["Grüße\n", b"\x00\xff"], ids=["text", "bytes"])
def test_a_file_holds_what_was_written(tmp_path, content):
    file = tmp_path / "file"
    file.write_text("something longer that was there before")
    write_atomically(file, content)
    assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(tmp_path) == ["file"]


def test_a_reader_sees_the_old_content_or_the_new(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    with file.open() as reader:
        write_atomically(file, "new")
        assert reader.read() == "old"
    assert file.read_text() == "new"


def test_a_write_that_fails_leaves_the_old_content_and_no_partial_file(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "inner").write_text("old")
    with pytest.raises(EtagError, match="taken"):
        write_atomically(tmp_path / "taken", "new")  # a folder cannot be replaced by a file
    assert os.listdir(tmp_path) == ["taken"]
    assert (tmp_path / "taken" / "inner").read_text() == "old"


def test_a_busy_lock_is_refused_at_once_and_released_when_its_owner_is_killed(tmp_path):
    lock = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path; from etag.core.files import locked\n"
        "with locked(Path(sys.argv[1]), 'busy'):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout.readline() == "held\n"
        start = time.monotonic()
        with pytest.raises(EtagError, match="somebody else is at it"), locked(lock, "somebody else is at it"):
            pass
        assert time.monotonic() - start < 1
    finally:
        owner.kill()
        owner.communicate()
    with locked(lock, "busy"):
        pass


def test_a_lock_is_released_when_the_work_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock", "busy"):
        raise ZeroDivisionError
    with locked(tmp_path / "lock", "busy"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME is Linux's")
def test_the_cache_follows_the_platform(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "etag"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == Path.home() / ".cache" / "etag"


def test_no_module_of_ours_imports_what_only_posix_has():
    """Every module is imported in a process in which the POSIX-only modules are missing for our own code."""
    code = f"""
import builtins, importlib, os, pkgutil
import torch
real = builtins.__import__
def guarded(name, globals=None, *rest):
    if name in {POSIX_ONLY} and (globals or {{}}).get("__name__", "").startswith("etag."):
        raise ImportError(f"{{globals['__name__']}} imports {{name}}")
    return real(name, globals, *rest)
builtins.__import__ = guarded
import etag
del os.sysconf
for module in pkgutil.walk_packages(etag.__path__, "etag."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
