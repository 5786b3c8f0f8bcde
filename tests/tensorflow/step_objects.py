"""Compares ops of stacks and tensor arrays on our server with a local TensorFlow session: values, classes of errors and
error messages."""
import argparse
import re

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import gen_data_flow_ops as g

tf.disable_v2_behavior()

# Without rewrites, which would remove ops whose only effect is an error.
CONFIG = tf.ConfigProto()
CONFIG.graph_options.rewrite_options.disable_meta_optimizer = True

CASES = []
NOISE = (" ", "\t", "Graph exec", "Detected", "Original", "From /job")


def t(label, build):
    """Registers a case: `build` returns the tensor or op to run."""
    CASES.append((label, build))


def run(target, build):
    """Returns the value or the error as text, without the numbers at the end of object names."""
    with tf.Graph().as_default():
        try:
            fetch = build()
            with tf.Session(target, config=CONFIG) as session:
                outcome = repr(session.run(fetch))
        except tf.errors.OpError as error:
            lines = [line for line in error.message.splitlines() if line and not line.startswith(NOISE)]
            outcome = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return re.sub(r"_[0-9]+\b", "_N", outcome)


def ta(size=3,dtype=tf.float32,**k): return g.tensor_array_v3(size=size,dtype=dtype,**k)
def dep(a,f):
    with tf.control_dependencies([a]): return f()
def pop_empty():
    h=g.stack_v2(-1, tf.float32); return g.stack_pop_v2(h, tf.float32)
t("pop empty", pop_empty)
def over():
    h=g.stack_v2(1, tf.float32, stack_name="s"); a=g.stack_push_v2(h, 1.0)
    return dep(a, lambda: g.stack_push_v2(h, 2.0))
t("push over", over)
t("push wrong", lambda: g.stack_push_v2(g.stack_v2(1, tf.float32, stack_name="s"), 1))
def popwrong():
    h=g.stack_v2(1, tf.float32, stack_name="s"); a=g.stack_push_v2(h, 1.)
    return dep(a, lambda: g.stack_pop_v2(h, tf.int32))
t("pop wrong", popwrong)
def closed():
    h=g.stack_v2(1, tf.float32, stack_name="s"); a=g.stack_close_v2(h)
    return dep(a, lambda: g.stack_push_v2(h, 1.0))
t("closed", closed)
t("size vec", lambda: g.stack_push_v2(g.stack_v2([1,2], tf.float32),1.0))
t("size 0", lambda: g.stack_push_v2(g.stack_v2(0, tf.float32),1.0))
t("size -5", lambda: g.stack_push_v2(g.stack_v2(-5, tf.float32),1.0))
def w(idx, val, **k):
    def f():
        h,fl=ta(**k); return g.tensor_array_write_v3(h, idx, val, fl)
    return f
t("write -1", w(-1,1.0)); t("write 3", w(3,1.0)); t("write 3 dyn", w(3,1.0,dynamic_size=True))
t("write dtype", w(0,1))
t("write shape", lambda: w(0,tf.placeholder_with_default([1.0],None),element_shape=[2])())
t("neg size", w(0,1.0,size=-1))
def ww(v1,v2,**k):
    def f():
        h,fl=ta(**k); a=g.tensor_array_write_v3(h, 0, v1, fl); return g.tensor_array_write_v3(h,0,v2,a)
    return f
t("write twice", ww(1.0,2.0))
def wr(**k):
    def f():
        h,fl=ta(**k); a=g.tensor_array_write_v3(h, 0, 1.0, fl); b=g.tensor_array_read_v3(h,0,a,tf.float32)
        return dep(b, lambda: g.tensor_array_read_v3(h,0,a,tf.float32))
    return f
t("read twice", wr()); t("read twice noclear", wr(clear_after_read=False))
def wrw():
    h,fl=ta(); a=g.tensor_array_write_v3(h, 0, 1.0, fl); b=g.tensor_array_read_v3(h,0,a,tf.float32)
    return dep(b, lambda: g.tensor_array_write_v3(h,0,2.0,a))
t("write after read", wrw)
t("write after read noclear", lambda: (lambda hf: (lambda a: dep(g.tensor_array_read_v3(hf[0],0,a,tf.float32), lambda: g.tensor_array_write_v3(hf[0],0,2.0,a)))(g.tensor_array_write_v3(hf[0],0,1.,hf[1])))(ta(clear_after_read=False)))
rd=lambda i,dt=tf.float32,**k: (lambda: (lambda hf: g.tensor_array_read_v3(hf[0],i,hf[1],dt))(ta(**k)))
t("read unwritten", rd(0)); t("read unwritten shaped", rd(0,element_shape=[2])); t("read oob", rd(5)); t("read dtype", rd(0,tf.int32)); t("read partial shape", rd(0,element_shape=[None,2]))
t("read unwritten string", rd(0,tf.string,dtype=tf.string,element_shape=[2]))
ge=lambda i,**k: (lambda: (lambda hf: g.tensor_array_gather_v3(hf[0],tf.constant(i,tf.int32),hf[1],tf.float32,**k))(ta()))
t("gather empty unk", ge([])); t("gather empty shaped", ge([],element_shape=[2])); t("gather empty partial", ge([],element_shape=[None,2])); t("gather unwritten", ge([0,1]))
t("gather empty ta shaped", lambda: (lambda hf: g.tensor_array_gather_v3(hf[0],tf.constant([],tf.int32),hf[1],tf.float32))(ta(element_shape=[2])))
t("gather part unwritten", lambda: (lambda hf: g.tensor_array_gather_v3(hf[0],[0,1],g.tensor_array_write_v3(hf[0],0,[1.,2.],hf[1]),tf.float32))(ta()))
def sc(idx,val,then=None,**k):
    def f():
        h,fl=ta(**k); v=val() if callable(val) else val; a=g.tensor_array_scatter_v3(h,idx,v,fl)
        return then(h,a) if then else a
    return f
M=[[1.,2.],[3.,4.],[5.,6.]]
ga=lambda idx,**k: (lambda h,a: g.tensor_array_gather_v3(h,idx,a,tf.float32,**k))
t("gather neg", sc([2,0,1],M,ga([0,-1,2]))); t("gather oob", sc([2,0,1],M,ga([0,7,2]))); t("gather dup", sc([2,0,1],M,ga([0,0]))); t("gather dup noclear", sc([2,0,1],M,ga([0,0]),clear_after_read=False))
t("scatter oob", sc([3,0,1],[1.,2.,3.])); t("scatter oob dyn", sc([5,0,1],[1.,2.,3.],lambda h,a: g.tensor_array_size_v3(h,a),dynamic_size=True)); t("scatter neg", sc([-1,0,1],[1.,2.,3.]))
t("scatter count", sc([0,1],lambda: tf.placeholder_with_default([1.,2.,3.],None))); t("scatter scalar", sc([0],lambda: tf.placeholder_with_default(1.,None)))
t("scatter dup", sc([0,0],[1.,2.])); t("scatter empty", sc(np.zeros([0],np.int32),np.zeros([0,2],np.float32)))
t("gather mixed", lambda: (lambda hf: g.tensor_array_gather_v3(hf[0],[0,1],g.tensor_array_write_v3(hf[0],1,[1.],g.tensor_array_write_v3(hf[0],0,[1.,2.],hf[1])),tf.float32))(ta()))
t("gather shape attr", sc([0],[[1.,2.]],ga([0],element_shape=[3])))
def sp(val,lens,then=None,**k):
    def f():
        h,fl=ta(**k); a=g.tensor_array_split_v3(h,tf.placeholder_with_default(val,None),tf.constant(lens,tf.int64),fl)
        return then(h,a) if then else a
    return f
cc=lambda h,a: g.tensor_array_concat_v3(h,a,tf.float32)
sz=lambda h,a:g.tensor_array_size_v3(h,a)
t("split concat", sp([1.,2.,3.,4.,5.],[2,0,3],cc)); t("split bad sum", sp([1.,2.,3.],[1,1,2])); t("split count", sp([1.,2.,3.],[1,2])); t("split count dyn", sp([1.,2.,3.],[1,1,1,0],sz,dynamic_size=True)); t("split few dyn", sp([1.,2.,3.],[1,2],sz,dynamic_size=True)); t("split scalar", sp(1.,[1,0,0])); t("split elem shape", sp([[1.],[2.],[3.]],[1,1,1],element_shape=[2])); t("split elem shape3", sp([[1.],[2.],[3.]],[1,1,1],element_shape=[1,2]))
t("split none", sp(np.zeros([0],np.float32),[],size=0))
ce=lambda **k: (lambda: (lambda hf: g.tensor_array_concat_v3(hf[0],hf[1],tf.float32,**k))(ta(size=0)))
t("concat unwritten", lambda: (lambda hf: g.tensor_array_concat_v3(hf[0],hf[1],tf.float32))(ta()))
t("concat size 0", ce()); t("concat size 0 shaped", ce(element_shape_except0=[2]))
t("concat scalars", sc([0,1,2],[1.,2.,3.],cc))
t("concat mixed", lambda: (lambda hf: g.tensor_array_concat_v3(hf[0],g.tensor_array_write_v3(hf[0],1,[[1.]],g.tensor_array_write_v3(hf[0],0,[[1.,2.]],hf[1])),tf.float32))(ta(size=2)))
t("concat except0", lambda: (lambda hf: g.tensor_array_concat_v3(hf[0],g.tensor_array_write_v3(hf[0],0,[[1.,2.]],hf[1]),tf.float32,element_shape_except0=[3]))(ta(size=1)))
t("concat part unwritten shaped", lambda: (lambda hf: g.tensor_array_concat_v3(hf[0],g.tensor_array_write_v3(hf[0],0,[[1.,2.]],hf[1]),tf.float32))(ta(size=2,element_shape=[1,2])))
def gr(body,**k):
    def f():
        h,fl=ta(**k); return body(h,fl)
    return f
def grad_rw(h,fl):
    a=g.tensor_array_write_v3(h,0,[1.,2.],fl); gh,gf=g.tensor_array_grad_v3(h,a,"gradients")
    b=g.tensor_array_write_v3(gh,0,[5.,6.],gf); c=g.tensor_array_write_v3(gh,0,[1.,1.],b)
    return g.tensor_array_read_v3(gh,0,c,tf.float32)
t("grad accumulates", gr(grad_rw))
def grad_unwritten(i,clear=False):
    def f(h,fl):
        a=g.tensor_array_write_v3(h,0,[1.,2.],fl); gh,gf=g.tensor_array_grad_v3(h,a,"gradients")
        return g.tensor_array_read_v3(gh,i,gf,tf.float32)
    return f
t("grad unwritten", gr(grad_unwritten(0))); t("grad of unwritten element", gr(grad_unwritten(1)))
def grad_shape(h,fl):
    a=g.tensor_array_write_v3(h,0,[1.,2.],fl); gh,gf=g.tensor_array_grad_v3(h,a,"gradients")
    return g.tensor_array_write_v3(gh,0,tf.placeholder_with_default([5.],None),gf)
t("grad write shape", gr(grad_shape))
def grad_shape2(h,fl):
    a=g.tensor_array_write_v3(h,0,[1.,2.],fl); gh,gf=g.tensor_array_grad_v3(h,a,"gradients")
    b=g.tensor_array_write_v3(gh,0,[5.,1.],gf)
    return g.tensor_array_write_v3(gh,0,[5.],b)
t("grad agg shape", gr(grad_shape2))
def grad_agg(h,fl):
    a=g.tensor_array_write_v3(h,0,[1.,2.],fl); gh,gf=g.tensor_array_grad_v3(h,a,"gradients")
    b=g.tensor_array_write_v3(gh,0,[5.,6.],gf); r=g.tensor_array_read_v3(gh,0,b,tf.float32)
    return dep(r, lambda: g.tensor_array_write_v3(gh,0,[5.,6.],gf))
t("grad write after read", gr(grad_agg))
def G(then):
    def f(h,fl):
        a=g.tensor_array_write_v3(h,0,[1.,2.],fl); gh,gf=g.tensor_array_grad_v3(h,a,"g2")
        return then(h,a,gh,gf)
    return f
t("grad size", gr(G(lambda h,a,gh,gf: g.tensor_array_size_v3(gh,gf))))
t("grad grow", gr(G(lambda h,a,gh,gf: g.tensor_array_write_v3(gh,9,[1.,2.],gf)),dynamic_size=True))
t("grad then grow", gr(G(lambda h,a,gh,gf: dep(gf,lambda: g.tensor_array_write_v3(h,9,[1.,2.],a))),dynamic_size=True))
t("grad twice", gr(G(lambda h,a,gh,gf: g.tensor_array_read_v3(g.tensor_array_grad_v3(h,g.tensor_array_write_v3(gh,0,[7.,8.],gf),"g2")[0],0,g.tensor_array_write_v3(gh,1,[7.,8.],gf),tf.float32))))
def gws(then):
    def f(h,fl):
        a=g.tensor_array_write_v3(h,0,[1.,2.],fl); gh,gf=g.tensor_array_grad_with_shape(h,a,[3],"g2"); return then(gh,gf)
    return f
t("grad with shape", gr(gws(lambda gh,gf: g.tensor_array_read_v3(gh,0,gf,tf.float32))))
t("grad with shape unwritten", gr(gws(lambda gh,gf: g.tensor_array_read_v3(gh,1,gf,tf.float32))))
t("grad with shape write", gr(gws(lambda gh,gf: g.tensor_array_write_v3(gh,0,np.ones([3,2],np.float32),gf))))
t("grad with shape write bad", gr(gws(lambda gh,gf: g.tensor_array_write_v3(gh,0,np.ones([2,2],np.float32),gf))))
def grad_of_grad(h,fl):
    gh,gf=g.tensor_array_grad_v3(h,fl,"g2"); gh2,gf2=g.tensor_array_grad_v3(gh,gf,"g3")
    return g.tensor_array_size_v3(gh2,gf2)
t("grad of grad", gr(grad_of_grad))
def tclosed(h,fl):
    return dep(g.tensor_array_close_v3(h), lambda: g.tensor_array_write_v3(h,0,1.,fl))
t("ta closed", gr(tclosed))
t("ident", lambda: (lambda hf: g.tensor_array_write_v3(hf[0],1,tf.placeholder_with_default([1.],None),g.tensor_array_write_v3(hf[0],0,[1.,2.],hf[1])))(ta(identical_element_shapes=True)))
t("ident read unwritten", lambda: (lambda hf: g.tensor_array_read_v3(hf[0],1,g.tensor_array_write_v3(hf[0],0,[1.,2.],hf[1]),tf.float32))(ta(identical_element_shapes=True)))
t("string gather", lambda: (lambda hf: g.tensor_array_gather_v3(hf[0],[1,0],g.tensor_array_scatter_v3(hf[0],[0,1],["a","b"],hf[1]),tf.string))(ta(dtype=tf.string)))
t("string grad", lambda: g.tensor_array_grad_v3(*ta(dtype=tf.string),"x")[1])
t("bool grad agg", lambda: (lambda hf: (lambda gg: g.tensor_array_write_v3(gg[0],0,True,g.tensor_array_write_v3(gg[0],0,True,gg[1])))(g.tensor_array_grad_v3(hf[0],hf[1],"x")))(ta(dtype=tf.bool)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    target = parser.parse_args().target
    wrong = 0
    for label, build in CASES:
        ours, theirs = run(target, build), run("", build)
        if ours != theirs:
            wrong += 1
            print(f"{label}: {ours}\n  not {theirs}")
    print(f"{len(CASES)} programs compared, {wrong} differences")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
