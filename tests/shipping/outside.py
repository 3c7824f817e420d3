"""Runs exported models where there is no evorl: python -I -S outside.py FOLDER PATH...

FOLDER has one folder for each agent, with obs.npy beside the files that `evorl export` wrote. What
the models answer goes to answer.npy and example.txt. PATH are the folders of installed packages;
without Python's site module nothing else is found, an editable install of evorl neither.
"""

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path


class NoEvorl:
    """Evorl cannot be imported, wherever it may be."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "evorl":
            raise ModuleNotFoundError(name)


def model_of(folder):
    import numpy as np
    import torch

    if (folder / "model.onnx").exists():
        import onnxruntime

        assert "torch" not in (folder / "example.py").read_text()
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        return lambda obs: session.run(None, {"obs": obs})[0]
    if (folder / "model.pt").exists():
        module = torch.jit.load(folder / "model.pt")
    else:
        module = runpy.run_path(str(folder / "model.py"))["load"]()
    return lambda obs: np.asarray(module(torch.from_numpy(obs)).detach())


def main():
    root = Path(sys.argv[1]).resolve()
    sys.path += sys.argv[2:]
    with contextlib.suppress(ModuleNotFoundError):
        import evorl

        raise SystemExit(f"evorl can be imported: {evorl.__file__}")
    sys.meta_path.insert(0, NoEvorl())
    import numpy as np

    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        obs, values = np.load(folder / "obs.npy"), model_of(folder)
        answer = values(obs)
        parts = [values(obs[:1]), values(obs[1:8]), values(obs[8:])]  # any batch size
        np.testing.assert_allclose(np.concatenate(parts), answer, rtol=0, atol=1e-5)
        np.save(folder / "answer.npy", answer)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        sys.modules.pop("model", None)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            runpy.run_path("example.py", run_name="__main__")
        del sys.path[0]
        Path("example.txt").write_text(said.getvalue())
    assert not any(name.partition(".")[0] == "evorl" for name in sys.modules)


main()
