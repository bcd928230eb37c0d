"""The keys of engines."""

from dataclasses import replace

from isorun.models import lowering
from isorun.models import source as models
from isorun.system.cache import Cache
from isorun_backends.nvidia.engine_cache import Target, key
from isorun_backends.nvidia.shape_profiles import Profile


def test_every_part_of_the_key_matters(bert, tmp_path):

    cache = Cache(tmp_path)
    model = lowering.ModelGraphs(models.open_model(bert, cache), cache).lower(("onnx",))
    target = Target("10.16", "A GPU", "9.0", "13.0")
    wide, narrow = Profile({"batch": (1, 1, 4)}), Profile({"batch": (1, 1, 1)})
    keys = [
        key(model, "fp32", [wide], target, workspace=0),
        key(model, "fp16", [wide], target, workspace=0),
        key(model, "fp32", [narrow], target, workspace=0),
        key(model, "fp32", [wide, narrow], target, workspace=0),
        key(model, "fp32", [wide], target, workspace=1),
        key(replace(model, fingerprint="0"), "fp32", [wide], target, workspace=0),
        key(replace(model, path=model.path.with_name("other.onnx")), "fp32", [wide], target, workspace=0),
        key(replace(model, dialect="primitive"), "fp32", [wide], target, workspace=0),
        *(
            key(model, "fp32", [wide], replace(target, **{part: "other"}), workspace=0)
            for part in ("runtime", "gpu", "compute", "driver")
        ),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == key(model, "fp32", [wide], target, workspace=0)
