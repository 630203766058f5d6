"""What is compared: for each policy the specs, in which rules differ. `PROFILE` stands for a file that the test writes."""

SHARES = ("shared", "kv_group", "head_union", "rerank", "per_head")


def shares(name, keys="blocks=6"):
    return [f"{name}:{keys},share={share}" for share in SHARES]


SPECS = {
    "dense": ["dense"],
    "mean": [*shares("mean"), "mean:budget=15%", "mean:tokens=193", "mean:blocks=4,reuse=3", "mean:blocks=4,reuse_cos=0.9",
             "mean:blocks=4,tail=on", "mean:blocks=4,tail=var,share=per_head", "mean:blocks=4,anchor=20,window=8",
             "mean:blocks=8,window@0-7=256,blocks@12-=3", "mean:budget=20%,tail=on"],
    "quest": [*shares("quest"), "quest:budget=20%", "quest:blocks=4,reuse=4"],
    "unique": [*shares("unique"), "unique:blocks=6,form=abs", "unique:blocks=6,lambda=2", "unique:budget=15%",
               "unique:blocks=6,form=abs,share=per_head"],
    "mass": [*shares("mass"), "mass:blocks=6,groups=1", "mass:blocks=6,groups=d", "mass:budget=15%"],
    "compkv": [*shares("compkv"), "compkv:blocks=6,groups=d,tail=off", "compkv:blocks=6,window=20", "compkv:budget=20%"],
    "oracle": [*shares("oracle"), *shares("oracle", "blocks=6,by=value"), "oracle:budget=10%"],
    "layered": ["layered:blocks=6", "layered:blocks=6,early_window=512", "layered:tokens=193"],
    "random": ["random:blocks=6", "random:blocks=6,share=per_head,seed=7", "random:budget=10%"],
    "bigbird": ["bigbird:blocks=6", "bigbird:blocks=3,anchor=128,window=128"],
    "window": ["window:window=64", "window:window=9,anchor=5"],
    "sink": ["sink:window=64", "sink:window=100,sink=7"],
    "longformer": ["longformer", "longformer:window=100,anchor=3"],
    "strided": ["strided:l=40", "strided:tokens=193", "strided:budget=10%"],
    "fixed": ["fixed:l=128,c=8", "fixed:tokens=193", "fixed:budget=20%"],
    "duo": ["duo", "duo:sink=10,window=100", "duo:profile=PROFILE", "duo:profile=PROFILE,sparsity=50%"],
    "topk": ["topk:tokens=193", "topk:budget=8%", "topk:tokens=300,anchor=9,window=32"],
    "tokenselect": ["tokenselect:tokens=300", "tokenselect:tokens=300,anchor=8,window=64", "tokenselect:tokens=300,pool=5",
                    "tokenselect"],
    "topp": ["topp:mass=70%,budget=60%", "topp:mass=90%", "topp:by=row,mass=85%,budget=90%",
             "topp:by=row_q8,mass=80%,budget=70%"],
    "tactic": ["tactic:mass=70%,budget=50%", "tactic:budget=25%"],
    "retrieval": ["retrieval:tokens=193", "retrieval:tokens=300,probe=12", "retrieval:budget=20%"],
    "infllm": ["infllm:tokens=385", "infllm:tokens=640,anchor=16,window=128", "infllm:tokens=450"],
    "h2o": ["h2o:tokens=97", "h2o:tokens=200,share=kv_group", "h2o:budget=10%", "h2o:tokens=120,recent=25%"],
    "snapkv": ["snapkv:tokens=193", "snapkv:tokens=193,pooling=average,pool=5", "snapkv:budget=10%,observe=64"],
    "tova": ["tova:tokens=193", "tova:budget=10%"],
    "pillar": ["pillar:tokens=193", "pillar:budget=10%", "pillar:tokens=120,anchor=9,window=20"],
    "condense": ["condense:budget=20%", "condense:budget=15%,split=0.3", "condense:budget=20%,rotation=on",
                 "condense:budget=20%,bits=64", "condense:budget=15%,scan=50%", "condense:budget=30%,mass=80%"],
}
# Specs on a q8_0 cache.
Q8_SPECS = {"mean": ["mean:blocks=6"], "quest": ["quest:blocks=6"], "oracle": ["oracle:blocks=6"], "topk": ["topk:budget=10%"],
            "h2o": ["h2o:tokens=97"], "condense": ["condense:budget=25%"], "compkv": ["compkv:blocks=6"]}
