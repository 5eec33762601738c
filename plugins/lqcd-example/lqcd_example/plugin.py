"""What the backend says about itself. Data only: this module is imported whenever somebody asks what there is."""

from lqcd_core import BackendInfo, hookimpl

INFO = BackendInfo(
    name="example",
    load="lqcd_example.backend:ExampleBackend",  # imported on first use, so heavy imports belong there
    precisions={"double", "single"},
    rank=-10,  # behind every real backend when the user names none
    summary="the smallest complete backend, for authors to copy",
)


@hookimpl
def lqcd_register_backends():
    return [INFO]
