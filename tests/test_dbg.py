import time, torch
from lightning_fabric import Fabric
from etag.core.options import RuntimeOptions
from etag.engine.engine import Engine
from etag.engine.runtime import Runtime
from torch._dynamo.utils import counters
def test(lab):
    torch._dynamo.reset(); counters.clear()
    rt = Runtime(Fabric(accelerator="cpu", devices=1), RuntimeOptions(accelerator="cpu", compile=True))
    l, e = (lab("etag", optimiser="sgd", lr=0.01, steps=2) for _ in range(2))
    l.engine = Engine(rt)
    for i in range(3):
        t=time.time(); l.learn(i); e.learn(i)
        print(i, time.time()-t, dict(counters["stats"]), len(l.method.solver.static))
    for (k,a),b in zip(l.method.solver.state_dict().items(), e.method.solver.state_dict().values()):
        d=(a-b).abs().max().item()
        if d>1e-5: print(k,d,b.abs().max().item())
