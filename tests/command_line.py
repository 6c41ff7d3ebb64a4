"""The command `foresee` as a person types it, in this process: arguments in, exit code out."""

from __future__ import annotations

import sys

import pytest

from foresee.tools.cli import main


def foresee(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["foresee", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert isinstance(code, int | None)
    return code or 0
