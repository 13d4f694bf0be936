import sys
sys.path.insert(0,'/opt/dev/wt/core/tests/torch/audit')
from test_planted_faults import *
from simdp.torch.audit import investigation as I
orig=I.Investigation._pair
def _pair(self,base,record,before):
    if record.error: print('ERR',record.error[-1500:])
    return orig(self,base,record,before)
I.Investigation._pair=_pair
def test_x():
    truth, asked = request('13_batchnorm_local_statistics', "bug.py")
    r=audit_script(asked)
    for e in r.experiments: print(e)
    for f in r.findings: print(f)
    assert 0
