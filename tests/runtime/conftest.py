"""Fixtures that the tests of both engines share."""

import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)
