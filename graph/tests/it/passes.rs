//! Tests of passes over graphs in the text format.

use anabranch_graph::ops::Evaluate;
use anabranch_graph::passes::{
    FoldOptions, fold, fuse, fuse_norms, fuse_products, merge, prune, remove_unread_nodes, validate,
};
use anabranch_graph::{DType, Error, Graph, Node, NodeId, Output, Result, Shape, Tensor, ops};
use expect_test::{Expect, expect};

/// Checks the graph that the pass returns for the graph `text`; `keep` names nodes, separated by spaces.
fn check(pass: &str, keep: &str, text: &str, expected: Expect) -> Result<()> {
    let graph = Graph::from_text(text)?;
    let find = |name: &str| graph.find(name).ok_or_else(|| Error::invalid(format!("no node {name}")));
    let keep = keep.split_whitespace().map(find).collect::<Result<Vec<NodeId>>>()?;
    let after = match pass {
        "prune" => prune(&graph, &keep),
        "merge" => merge(&graph, &keep),
        "fold" => fold(&graph, &FloatKernels, &FoldOptions { keep: &keep, growth: 64, total: 200 }),
        "unread" => remove_unread_nodes(&graph, &keep),
        "fuse" => fuse(graph, &|node| ["AddV2", "Mul", "Neg"].contains(&node.op.name())),
        "fuse_norms" => fuse_norms(graph, &|_| true),
        "fuse_products" => fuse_products(graph, &|_| true),
        "fuse_products with biases" => fuse_products(graph, &is_only_biased),
        other => Err(Error::invalid(format!("no pass {other}"))),
    }?;
    validate(&after)?;
    expected.assert_eq(&after.to_text());
    Ok(())
}

fn is_only_biased(product: &Node) -> bool {
    product.attr::<Vec<bytes::Bytes>>("fused_ops").is_ok_and(|ops| ops == ["BiasAdd"])
}

/// Kernels of a few ops on floats.
struct FloatKernels;

impl Evaluate for FloatKernels {
    fn evaluate(&self, node: &Node, inputs: &[Tensor]) -> Option<Result<Vec<Tensor>>> {
        match node.op.name() {
            "AddV2" => Some(add(&inputs[0], &inputs[1])),
            "Identity" | "IdentityN" => Some(Ok(inputs.to_vec())),
            "Fill" => Some(fill(inputs)),
            "CheckNumerics" => Some(Err(Error::invalid("not finite"))),
            _ => None,
        }
    }
}

fn add(x: &Tensor, y: &Tensor) -> Result<Vec<Tensor>> {
    let sums: Vec<f32> = x.values::<f32>()?.iter().zip(y.values::<f32>()?).map(|(a, b)| a + b).collect();
    Ok(vec![Tensor::from_slice(&sums, x.shape().clone())?])
}

fn fill(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let shape = Shape::from_i64(&inputs[0].to_i64s()?)?;
    assert!(shape.num_elements() < 1000, "too large to be tried");
    Ok(vec![Tensor::full(inputs[1].item::<f32>()?, shape)?])
}

#[test]
fn prune_keeps_ancestors_by_data_and_control() -> Result<()> {
    check(
        "prune",
        "y",
        r#"
        %versions producer=21 min_consumer=0
        init = NoOp
        unused = Placeholder[dtype=float]
        x = Placeholder[dtype=float](^init) @"/job:ps"
        both = IdentityN[T=[float, float]](x, x)
        after = Identity[T=float](y)
        y = AddV2[T=float](both:1, x)
        "#,
        expect![[r#"
            %versions producer=21 min_consumer=0
            init = NoOp
            x = Placeholder[dtype=float](^init) @"/job:ps"
            both = IdentityN[T=[float, float]](x, x)
            y = AddV2[T=float](both:1, x)
        "#]],
    )
}

#[test]
fn merge_keeps_the_first_of_equal_nodes() -> Result<()> {
    check(
        "merge",
        "kept fed",
        r#"
        x = Placeholder[dtype=float]
        z = Placeholder[dtype=float]
        a = AddV2[T=float](x, z)
        commuted = AddV2[T=float](z, x)
        elsewhere = AddV2[T=float](x, z) @"/device:GPU:0"
        ordered = AddV2[T=float](x, z, ^x)
        kept = AddV2[T=float](x, z)
        anchor = AddV2[T=float](x, z)
        follower = Identity[T=float, _class=["loc:@anchor"]](commuted)
        zero = Const[dtype=float, value=float<>{0.0}]
        minus_zero = Const[dtype=float, value=float<>{-0.0}]
        zero_again = Const[dtype=float, value=float<>{0.0}]
        chained = AddV2[T=float](commuted, zero_again, ^zero, ^zero_again)
        chained_too = AddV2[T=float](a, zero, ^zero)
        last = AddN[N=3, T=float](chained, chained_too, minus_zero)
        r = RandomUniform[T=int32, dtype=float](s)
        q = RandomUniform[T=int32, dtype=float](s)
        s = Const[dtype=int32, value=int32<1>{2}]
        fed = Identity[T=float](a)
        not_fed = Identity[T=float](a)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            z = Placeholder[dtype=float]
            a = AddV2[T=float](x, z)
            elsewhere = AddV2[T=float](x, z) @"/device:GPU:0"
            ordered = AddV2[T=float](x, z, ^x)
            kept = AddV2[T=float](x, z)
            anchor = AddV2[T=float](x, z)
            follower = Identity[T=float, _class=["loc:@anchor"]](a)
            zero = Const[dtype=float, value=float<>{0.0}]
            minus_zero = Const[dtype=float, value=float<>{-0.0}]
            chained_too = AddV2[T=float](a, zero, ^zero)
            last = AddN[N=3, T=float](chained_too, chained_too, minus_zero)
            r = RandomUniform[T=int32, dtype=float](s)
            q = RandomUniform[T=int32, dtype=float](s)
            s = Const[dtype=int32, value=int32<1>{2}]
            fed = Identity[T=float](a)
            not_fed = Identity[T=float](a)
        "#]],
    )
}

#[test]
fn merge_ignores_colocation_of_placed_nodes() -> Result<()> {
    check(
        "merge",
        "",
        r#"
        w = Placeholder[dtype=float] @"/job:a/replica:0/task:0/device:CPU:0"
        rate = Const[_class=["loc:@w"], dtype=float, value=float<>{0.1}] @"/job:a/replica:0/task:0/device:CPU:0"
        same = Const[dtype=float, value=float<>{0.1}] @"/job:a/replica:0/task:0/device:CPU:0"
        again = Const[_class=["loc:@v"], dtype=float, value=float<>{0.1}] @"/job:a/replica:0/task:0/device:CPU:0"
        v = Placeholder[dtype=float] @"/job:a"
        open = Const[_class=["loc:@v"], dtype=float, value=float<>{0.1}] @"/job:a"
        other = Const[_class=["loc:@w"], dtype=float, value=float<>{0.1}] @"/job:a"
        sum = AddN[N=5, T=float](rate, same, again, open, other)
        "#,
        expect![[r#"
            w = Placeholder[dtype=float] @"/job:a/replica:0/task:0/device:CPU:0"
            rate = Const[_class=["loc:@w"], dtype=float, value=float<>{0.1}] @"/job:a/replica:0/task:0/device:CPU:0"
            v = Placeholder[dtype=float] @"/job:a"
            open = Const[_class=["loc:@v"], dtype=float, value=float<>{0.1}] @"/job:a"
            other = Const[_class=["loc:@w"], dtype=float, value=float<>{0.1}] @"/job:a"
            sum = AddN[N=5, T=float](rate, rate, rate, open, other)
        "#]],
    )
}

#[test]
fn merge_merges_whole_chains_of_equal_nodes() -> Result<()> {
    let mut text = String::from(
        "x0 = Placeholder[dtype=float]\ny0 = Identity[T=float](x0)\nz0 = Identity[T=float](x0)\n",
    );
    for i in 1..100 {
        let before = i - 1;
        text += &format!("y{i} = Relu[T=float](y{before})\nz{i} = Relu[T=float](z{before})\n");
    }
    let merged = merge(&Graph::from_text(&text)?, &[])?;
    assert_eq!(merged.len(), 101);
    Ok(())
}

#[test]
fn fold_computes_nodes_with_constant_inputs() -> Result<()> {
    check(
        "fold",
        "fetched",
        r#"
        pivot = Placeholder[dtype=bool]
        one = Const[dtype=float, value=float<2>{1.0, 1.0}](^pivot)
        two = Const[dtype=float, value=float<2>{2.0, 2.0}]
        three = AddV2[T=float](one, two) @"/job:ps"
        both = IdentityN[T=[float, float]](three, two, ^hook)
        hook = NoOp
        sum = AddV2[T=float, _class=["loc:@two"]](both:1, three)
        x = Placeholder[dtype=float]
        y = AddV2[T=float](x, both:1)
        z = AddV2[T=float](y, sum)
        fetched = AddV2[T=float](one, two)
        of_fetched = Identity[T=float](fetched)
        fails = CheckNumerics[T=float, message="m"](two)
        of_failed = Identity[T=float](fails)
        without_kernel = Relu[T=float](two)
        default = PlaceholderWithDefault[dtype=float, shape=<2>](two)
        of_default = Identity[T=float](default)
        "#,
        expect![[r#"
            pivot = Placeholder[dtype=bool]
            one = Const[dtype=float, value=float<2>{1.0, 1.0}](^pivot)
            two = Const[dtype=float, value=float<2>{2.0, 2.0}]
            three = AddV2[T=float](one, two) @"/job:ps"
            both = Const[dtype=float, value=float<2>{3.0, 3.0}](^hook, ^pivot)
            both/output_1 = Const[dtype=float, value=float<2>{2.0, 2.0}](^hook, ^pivot)
            hook = NoOp
            sum = Const[_class=["loc:@two"], dtype=float, value=float<2>{5.0, 5.0}](^hook, ^pivot)
            x = Placeholder[dtype=float]
            y = AddV2[T=float](x, both/output_1)
            z = AddV2[T=float](y, sum)
            fetched = AddV2[T=float](one, two)
            of_fetched = Identity[T=float](fetched)
            fails = CheckNumerics[T=float, message="m"](two)
            of_failed = Identity[T=float](fails)
            without_kernel = Relu[T=float](two)
            default = PlaceholderWithDefault[dtype=float, shape=<2>](two)
            of_default = Identity[T=float](default)
        "#]],
    )
}

#[test]
fn fold_keeps_nodes_whose_outputs_would_be_large() -> Result<()> {
    check(
        "fold",
        "",
        r#"
        zero = Const[dtype=float, value=float<>{0.0}]
        few = Const[dtype=int32, value=int32<1>{16}]
        many = Const[dtype=int32, value=int32<1>{1000000000}]
        small = Fill[T=float, index_type=int32](few, zero)
        also_small = Fill[T=float, index_type=int32](few, zero)
        large = Fill[T=float, index_type=int32](many, zero)
        a = Relu[T=float](small)
        b = Relu[T=float](large)
        c = Relu[T=float](also_small)
        beyond_total = Fill[T=float, index_type=int32](few, zero)
        also_beyond = Fill[T=float, index_type=int32](few, zero)
        d = Relu[T=float](beyond_total)
        e = Relu[T=float](also_beyond)
        "#,
        expect![[r#"
            zero = Const[dtype=float, value=float<>{0.0}]
            few = Const[dtype=int32, value=int32<1>{16}]
            many = Const[dtype=int32, value=int32<1>{1000000000}]
            small = Const[dtype=float, value=float<16>{0.0, ...}]
            also_small = Const[dtype=float, value=float<16>{0.0, ...}]
            large = Fill[T=float, index_type=int32](many, zero)
            a = Relu[T=float](small)
            b = Relu[T=float](large)
            c = Relu[T=float](also_small)
            beyond_total = Const[dtype=float, value=float<16>{0.0, ...}]
            also_beyond = Fill[T=float, index_type=int32](few, zero)
            d = Relu[T=float](beyond_total)
            e = Relu[T=float](also_beyond)
        "#]],
    )
}

#[test]
fn passes_handle_a_chain_of_a_million_nodes() -> Result<()> {
    let identity = ops::lookup("Identity").ok_or_else(|| Error::invalid("no Identity"))?;
    let placeholder = ops::lookup("Placeholder").ok_or_else(|| Error::invalid("no Placeholder"))?;
    const LENGTH: usize = 1_000_000;
    let mut graph = Graph::with_capacity(LENGTH, LENGTH);
    let start = Node::new("x", placeholder).with_attr("dtype", DType::Float);
    let mut last = graph.add(start, &[], &[])?;
    let mut node = Node::new("", identity).with_attr("T", DType::Float);
    for i in 1..LENGTH {
        node.name = format!("n{i}").into();
        last = graph.add(node.clone(), &[Output::from(last)], &[])?;
    }
    assert_eq!(prune(&graph, &[last])?.len(), LENGTH);
    assert_eq!(merge(&graph, &[])?.len(), LENGTH);
    let options = FoldOptions { growth: 64, ..FoldOptions::DEFAULT };
    assert_eq!(fold(&graph, &FloatKernels, &options)?.len(), LENGTH);
    // If only a control edge reads the end of the chain, the whole chain except its first node is removed.
    let no_op = ops::lookup("NoOp").ok_or_else(|| Error::invalid("no NoOp"))?;
    let waits = graph.add(Node::new("waits", no_op), &[], &[last])?;
    assert_eq!(remove_unread_nodes(&graph, &[waits])?.len(), 2);
    Ok(())
}

/// TensorFlow clients add a node that waits for all input gradients of an op, including gradients that no node reads,
/// such as the gradient with respect to the fed input `x`.
#[test]
fn unread_removes_gradients_used_by_control_edges_only() -> Result<()> {
    check(
        "unread",
        "gradient",
        r#"
        x = Placeholder[dtype=float]
        w = Placeholder[dtype=float]
        y = Mul[T=float](x, w)
        dy = Neg[T=float](y)
        shape = Const[dtype=int32, value=int32<1>{1}]
        product = Mul[T=float](dy, w)
        dx = Reshape[T=float, Tshape=int32](product, shape)
        dw = Mul[T=float](dy, x)
        group = NoOp(^dx, ^dw)
        gradient = Identity[T=float](dw, ^group)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            w = Placeholder[dtype=float]
            y = Mul[T=float](x, w)
            dy = Neg[T=float](y)
            dw = Mul[T=float](dy, x)
            group = NoOp(^dy, ^dw)
            gradient = Identity[T=float](dw, ^group)
        "#]],
    )
}

#[test]
fn unread_keeps_the_order_of_nodes() -> Result<()> {
    check(
        "unread",
        "a b c",
        r#"
        x = Placeholder[dtype=float]
        y = Placeholder[dtype=float]
        far = Placeholder[dtype=float] @"/job:ps"
        act = NoOp
        both = AddV2[T=float](x, y, ^act)
        a = NoOp(^both)
        b = NoOp(^both, ^x)
        near = Neg[T=float](far) @"/job:worker"
        c = NoOp(^near) @"/job:worker"
        d = NoOp(^near) @"/job:worker"
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            y = Placeholder[dtype=float]
            far = Placeholder[dtype=float] @"/job:ps"
            act = NoOp
            both = NoOp(^x, ^y, ^act)
            a = NoOp(^both)
            b = NoOp(^both, ^x)
            near = NoOp(^far) @"/job:worker"
            c = NoOp(^near) @"/job:worker"
            d = NoOp(^near) @"/job:worker"
        "#]],
    )
}

#[test]
fn unread_keeps_stateful_kept_and_conditional_nodes() -> Result<()> {
    let text = r#"
        x = Placeholder[dtype=float]
        which = Placeholder[dtype=bool]
        variable = VariableV2[dtype=float, shape=<>]
        assigned = Assign[T=float](variable, x)
        shape = Const[dtype=int32, value=int32<0>{}]
        random = RandomUniform[T=int32, dtype=float, seed=1](shape)
        checked = CheckNumerics[T=float, message="not finite"](x)
        fetched = Neg[T=float](x)
        switch = Switch[T=float](x, which)
        taken = Identity[T=float](switch:1)
        alone = Neg[T=float](x)
        end = NoOp(^assigned, ^random, ^checked, ^fetched, ^taken)
    "#;
    let graph = Graph::from_text(text)?;
    let keep = ["end", "fetched"].map(|name| graph.find(name));
    let after = remove_unread_nodes(&graph, &keep.into_iter().flatten().collect::<Vec<_>>())?;
    assert_eq!(after.to_text(), graph.to_text());
    Ok(())
}

/// `late` reads a Merge and may run when `early` is dead, so `end` needs both nodes as control inputs.
#[test]
fn unread_keeps_control_edges_that_decide_aliveness() -> Result<()> {
    check(
        "unread",
        "end",
        r#"
        x = Placeholder[dtype=float]
        which = Placeholder[dtype=bool]
        switch = Switch[T=float](x, which)
        early = Neg[T=float](switch:1)
        other = Identity[T=float](switch)
        merge = Merge[T=float, N=2](early, other)
        late = Identity[T=float](merge)
        both = AddV2[T=float](early, late)
        end = NoOp(^both, ^late)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            which = Placeholder[dtype=bool]
            switch = Switch[T=float](x, which)
            early = Neg[T=float](switch:1)
            other = Identity[T=float](switch)
            merge = Merge[N=2, T=float](early, other)
            late = Identity[T=float](merge)
            both = NoOp(^early, ^late)
            end = NoOp(^both, ^late)
        "#]],
    )
}

#[test]
fn passes_accept_loops_and_refuse_other_cycles() -> Result<()> {
    // The constants in the loop are folded, and the folded constant still waits for the Merge in each iteration.
    let text = r#"
        start = Const[dtype=float, value=float<>{1.0}]
        enter = Enter[T=float, frame_name="loop"](start)
        merge = Merge[T=float, N=2](enter, next)
        bound = Const[dtype=float, value=float<>{9.0}](^merge)
        also = Const[dtype=float, value=float<>{9.0}](^merge)
        sum = AddV2[T=float](bound, bound)
        less = Less[T=float](merge, sum)
        more = LoopCond(less)
        switch = Switch[T=float](merge, more)
        exit = Exit[T=float](switch)
        at = Identity[T=float](switch:1)
        then = AddV2[T=float](at, also)
        again = AddV2[T=float](at, bound)
        both = AddV2[T=float](then, again)
        next = NextIteration[T=float](both)
        unused = Identity[T=float](exit)
        "#;
    check(
        "fold",
        "exit",
        text,
        expect![[r#"
        start = Const[dtype=float, value=float<>{1.0}]
        enter = Enter[T=float, frame_name="loop"](start)
        merge = Merge[N=2, T=float](enter, next)
        bound = Const[dtype=float, value=float<>{9.0}](^merge)
        also = Const[dtype=float, value=float<>{9.0}](^merge)
        sum = Const[dtype=float, value=float<>{18.0}](^merge)
        less = Less[T=float](merge, sum)
        more = LoopCond(less)
        switch = Switch[T=float](merge, more)
        exit = Exit[T=float](switch)
        at = Identity[T=float](switch:1)
        then = AddV2[T=float](at, also)
        again = AddV2[T=float](at, bound)
        both = AddV2[T=float](then, again)
        next = NextIteration[T=float](both)
        unused = Identity[T=float](exit)
    "#]],
    )?;
    check(
        "merge",
        "exit",
        text,
        expect![[r#"
        start = Const[dtype=float, value=float<>{1.0}]
        enter = Enter[T=float, frame_name="loop"](start)
        merge = Merge[N=2, T=float](enter, next)
        bound = Const[dtype=float, value=float<>{9.0}](^merge)
        sum = AddV2[T=float](bound, bound)
        less = Less[T=float](merge, sum)
        more = LoopCond(less)
        switch = Switch[T=float](merge, more)
        exit = Exit[T=float](switch)
        at = Identity[T=float](switch:1)
        then = AddV2[T=float](at, bound)
        both = AddV2[T=float](then, then)
        next = NextIteration[T=float](both)
        unused = Identity[T=float](exit)
    "#]],
    )?;
    let graph = Graph::from_text(text)?;
    let exit = graph.find("exit").ok_or_else(|| Error::invalid("no exit"))?;
    let pruned = prune(&graph, &[exit])?;
    assert_eq!(pruned.len(), graph.len() - 1, "all but what follows the loop stays");
    let cycle = Graph::from_text(&text.replace("NextIteration", "Identity"));
    assert!(matches!(cycle, Err(Error::Cycle { .. })), "{cycle:?}");
    Ok(())
}

#[test]
fn fuse_fuses_nodes_read_only_inside_a_chain() -> Result<()> {
    check(
        "fuse",
        "",
        r#"
        %versions producer=21 min_consumer=0
        x = Placeholder[dtype=float]
        y = Placeholder[dtype=float]
        first = NoOp
        a = AddV2[T=float](x, y, ^first) @"/device:CPU:0"
        b = Mul[T=float](a, a, ^first) @"/device:CPU:0"
        c = AddV2[T=float](b, x) @"/device:CPU:0"
        seen = Neg[T=float](c) @"/device:CPU:0"
        d = Neg[T=float](seen) @"/device:CPU:0"
        out = Identity[T=float](d)
        other = Identity[T=float](seen)
        last = NoOp(^d)
        "#,
        expect![[r#"
            %versions producer=21 min_consumer=0
            x = Placeholder[dtype=float]
            y = Placeholder[dtype=float]
            first = NoOp
            seen = _FusedElementwise[N=2, T=float, names=["a", "b", "c", "seen"], operands=[0, 1, 2, 2, 3, 0, 4], ops=["AddV2", "Mul", "AddV2", "Neg"]](x, y, ^first) @"/device:CPU:0"
            d = Neg[T=float](seen) @"/device:CPU:0"
            out = Identity[T=float](d)
            other = Identity[T=float](seen)
            last = NoOp(^d)
        "#]],
    )
}

#[test]
fn fuse_separates_devices_types_and_ordered_nodes() -> Result<()> {
    check(
        "fuse",
        "",
        r#"
        %versions producer=21 min_consumer=0
        x = Placeholder[dtype=float]
        here = Neg[T=float](x) @"/device:CPU:0"
        there = Neg[T=float](here) @"/device:CPU:1"
        before = Neg[T=float](there) @"/device:CPU:1"
        after = NoOp(^before)
        last = Neg[T=float](before, ^after) @"/device:CPU:1"
        n = Placeholder[dtype=int32]
        m = Neg[T=int32](n)
        cast = Cast[SrcT=int32, DstT=float](m)
        sum = AddV2[T=float](cast, last)
        "#,
        expect![[r#"
            %versions producer=21 min_consumer=0
            x = Placeholder[dtype=float]
            here = Neg[T=float](x) @"/device:CPU:0"
            before = _FusedElementwise[N=1, T=float, names=["there", "before"], operands=[0, 1], ops=["Neg", "Neg"]](here) @"/device:CPU:1"
            after = NoOp(^before)
            last = Neg[T=float](before, ^after) @"/device:CPU:1"
            n = Placeholder[dtype=int32]
            m = Neg[T=int32](n)
            cast = Cast[DstT=float, SrcT=int32](m)
            sum = AddV2[T=float](cast, last)
        "#]],
    )
}

#[test]
fn fuse_reads_references_no_later_than_before() -> Result<()> {
    check(
        "fuse",
        "",
        r#"
        %versions producer=21 min_consumer=0
        x = Placeholder[dtype=float]
        v = VariableV2[dtype=float, shape=<>]
        read = Identity[T=float](v)
        one = Const[dtype=float, value=float<>{1.0}]
        biased = AddV2[T=float](x, read)
        scaled = Mul[T=float](biased, one)
        active = Neg[T=float](scaled)
        old = Mul[T=float](read, one)
        changed = AssignAdd[T=float](v, one)
        new = Identity[T=float](changed)
        rest = Neg[T=float](new)
        change = AddV2[T=float](old, rest)
        "#,
        expect![[r#"
            %versions producer=21 min_consumer=0
            x = Placeholder[dtype=float]
            v = VariableV2[dtype=float, shape=<>]
            read = Identity[T=float](v)
            one = Const[dtype=float, value=float<>{1.0}]
            active = _FusedElementwise[N=3, T=float, names=["biased", "scaled", "active"], operands=[0, 1, 3, 2, 4], ops=["AddV2", "Mul", "Neg"]](x, read, one)
            old = Mul[T=float](read, one)
            changed = AssignAdd[T=float](v, one)
            new = Identity[T=float](changed)
            rest = Neg[T=float](new)
            change = AddV2[T=float](old, rest)
        "#]],
    )
}

/// Both variables are ready when the step starts, so the fused node may wait for both of them.
#[test]
fn fuse_fuses_reads_of_references_ready_at_start() -> Result<()> {
    check(
        "fuse",
        "",
        r#"
        %versions producer=21 min_consumer=0
        v = VariableV2[dtype=float, shape=<>]
        w = VariableV2[dtype=float, shape=<>]
        read_v = Identity[T=float](v)
        read_w = Identity[T=float](w)
        product = Mul[T=float](read_v, read_v)
        sum = AddV2[T=float](product, read_w)
        "#,
        expect![[r#"
            %versions producer=21 min_consumer=0
            v = VariableV2[dtype=float, shape=<>]
            w = VariableV2[dtype=float, shape=<>]
            read_v = Identity[T=float](v)
            read_w = Identity[T=float](w)
            sum = _FusedElementwise[N=2, T=float, names=["product", "sum"], operands=[0, 0, 2, 1], ops=["Mul", "AddV2"]](read_v, read_w)
        "#]],
    )
}

#[test]
fn fuse_products_fuses_biases_and_activations() -> Result<()> {
    check(
        "fuse_products",
        "",
        r#"
        x = Placeholder[dtype=float]
        w = VariableV2[dtype=float, shape=<2,2>]
        b = VariableV2[dtype=float, shape=<2>]
        read_w = Identity[T=float](w)
        read_b = Identity[T=float](b)
        first = NoOp
        then = NoOp
        a = MatMul[T=float, transpose_b=true](x, read_w, ^first) @"/device:GPU:0"
        c = BiasAdd[T=float](a, read_b, ^first) @"/device:GPU:0"
        d = LeakyRelu[T=float, alpha=0.5](c) @"/device:GPU:0"
        seen = Identity[T=float](d)
        e = MatMul[T=float](d, x, ^first)
        f = BiasAdd[T=float](e, read_b, ^first, ^then)
        g = Tanh[T=float](f)
        h = Neg[T=float](f)
        last = NoOp(^g, ^h)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            w = VariableV2[dtype=float, shape=<2,2>]
            b = VariableV2[dtype=float, shape=<2>]
            read_w = Identity[T=float](w)
            read_b = Identity[T=float](b)
            first = NoOp
            then = NoOp
            d = _FusedMatMul[T=float, fused_ops=["BiasAdd", "LeakyRelu"], leakyrelu_alpha=0.5, num_args=1, transpose_a=false, transpose_b=true](x, read_w, read_b, ^first) @"/device:GPU:0"
            seen = Identity[T=float](d)
            f = _FusedMatMul[T=float, fused_ops=["BiasAdd"], num_args=1, transpose_a=false, transpose_b=false](d, x, read_b, ^first, ^then)
            g = Tanh[T=float](f)
            h = Neg[T=float](f)
            last = NoOp(^g, ^h)
        "#]],
    )
}

#[test]
fn fuse_products_leaves_out_an_activation_that_is_not_accepted() -> Result<()> {
    check(
        "fuse_products with biases",
        "",
        r#"
        x = Placeholder[dtype=half]
        a = MatMul[T=half](x, x)
        c = BiasAdd[T=half](a, x)
        d = Relu[T=half](c)
        "#,
        expect![[r#"
            x = Placeholder[dtype=half]
            c = _FusedMatMul[T=half, fused_ops=["BiasAdd"], num_args=1, transpose_a=false, transpose_b=false](x, x, x)
            d = Relu[T=half](c)
        "#]],
    )
}

#[test]
fn fuse_products_keeps_nodes_with_other_readers_devices_or_formats() -> Result<()> {
    let text = r#"
        x = Placeholder[dtype=float]
        seen = MatMul[T=float](x, x)
        seen_biased = BiasAdd[T=float](seen, x)
        fetched = Identity[T=float](seen)
        waited = MatMul[T=float](x, x)
        waited_biased = BiasAdd[T=float](waited, x)
        after = NoOp(^waited)
        twice = MatMul[T=float](x, x)
        twice_biased = BiasAdd[T=float](twice, twice)
        bias = MatMul[T=float](x, x)
        biased = BiasAdd[T=float](x, bias)
        here = MatMul[T=float](x, x) @"/device:GPU:0"
        there = BiasAdd[T=float](here, x) @"/device:GPU:1"
        images = MatMul[T=float](x, x)
        channels = BiasAdd[T=float, data_format="NCHW"](images, x)
        alone = MatMul[T=float](x, x)
        active = Relu[T=float](alone)
        y = Placeholder[dtype=double]
        long = MatMul[T=double](y, y)
        long_biased = BiasAdd[T=double](long, y)
    "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(fuse_products(graph.clone(), &|_| true)?.to_text(), graph.to_text());
    Ok(())
}

/// The product must read the variable before the assignment, but a fused node would wait for the bias, which is the
/// assigned value.
#[test]
fn fuse_products_reads_references_no_later_than_before() -> Result<()> {
    let text = r#"
        x = Placeholder[dtype=float]
        v = VariableV2[dtype=float, shape=<2>]
        read = Identity[T=float](v)
        changed = AssignAdd[T=float](v, x)
        new = Identity[T=float](changed)
        product = MatMul[T=float](x, read)
        biased = BiasAdd[T=float](product, new)
    "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(fuse_products(graph.clone(), &|_| true)?.to_text(), graph.to_text());
    Ok(())
}

#[test]
fn fuse_products_handles_long_graphs() -> Result<()> {
    let mut text = String::from("x0 = Placeholder[dtype=float]\n");
    for i in 1..=30_000 {
        let before = i - 1;
        text += &format!("p{i} = MatMul[T=float](x{before}, x0)\nx{i} = BiasAdd[T=float](p{i}, x0)\n");
    }
    let graph = fuse_products(Graph::from_text(&text)?, &|_| true)?;
    validate(&graph)?;
    assert_eq!(graph.len(), 1 + 30_000);
    Ok(())
}

/// A block of a residual network, forward and backward, with the updates of the running averages.
#[test]
fn fuse_norms_fuses_sums_activations_and_their_gradients() -> Result<()> {
    check(
        "fuse_norms",
        "",
        r#"
        x = Placeholder[dtype=float]
        v = Placeholder[dtype=float]
        dz = Placeholder[dtype=float]
        first = NoOp
        a = FusedBatchNormV3[T=float, U=float, epsilon=0.5](x, v, v, v, v, ^first)
        b = Relu[T=float](a)
        c = Neg[T=float](b)
        project = FusedBatchNormV3[T=float, U=float](x, v, v, v, v)
        d = FusedBatchNormV3[T=float, U=float, exponential_avg_factor=0.1](c, v, v, v, v)
        sum = AddV2[T=float](project, d)
        z = Relu6[T=float](sum)
        averages = NoOp(^a, ^d)
        new = Neg[T=float](d:1)
        new_project = Neg[T=float](project:2)
        seen = Neg[T=float](z)
        back_z = Relu6Grad[T=float](dz, z)
        back_d = FusedBatchNormGradV3[T=float, U=float](back_z, c, v, d:3, d:4, d:5)
        other = Neg[T=float](back_z)
        back_c = Neg[T=float](back_d)
        back_b = ReluGrad[T=float](back_c, b)
        back_a = FusedBatchNormGradV3[T=float, U=float, epsilon=0.5](back_b, x, v, a:3, a:4, a:5)
        scale = Neg[T=float](back_a:1)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            v = Placeholder[dtype=float]
            dz = Placeholder[dtype=float]
            first = NoOp
            b = _FusedBatchNormEx[T=float, U=float, activation_mode="Relu", data_format="NHWC", epsilon=0.5, exponential_avg_factor=1.0, is_training=true, num_side_inputs=0](x, v, v, v, v, ^first)
            c = Neg[T=float](b)
            project = FusedBatchNormV3[T=float, U=float](x, v, v, v, v)
            z = _FusedBatchNormEx[T=float, U=float, activation_mode="Relu6", data_format="NHWC", epsilon=0.0001, exponential_avg_factor=0.1, is_training=true, num_side_inputs=1](c, v, v, v, v, project)
            averages = NoOp(^b, ^z)
            new = Neg[T=float](z:1)
            new_project = Neg[T=float](project:2)
            seen = Neg[T=float](z)
            back_z = Relu6Grad[T=float](dz, z)
            back_d = FusedBatchNormGradV3[T=float, U=float](back_z, c, v, z:3, z:4, z:5)
            other = Neg[T=float](back_z)
            back_c = Neg[T=float](back_d)
            back_a = _FusedBatchNormActivationGrad[T=float, U=float, activation_mode="Relu", data_format="NHWC", epsilon=0.5, is_training=true](back_c, x, v, b:3, b:4, v)
            scale = Neg[T=float](back_a:1)
        "#]],
    )
}

#[test]
fn fuse_norms_fuses_inference_mode() -> Result<()> {
    check(
        "fuse_norms",
        "",
        r#"
        x = Placeholder[dtype=half]
        v = Placeholder[dtype=float]
        w = Placeholder[dtype=float]
        a = FusedBatchNormV2[T=half, U=float, data_format="NCHW", is_training=false](x, v, w, v, w)
        b = Relu[T=half](a)
        seen = Neg[T=half](b)
        db = ReluGrad[T=half](x, b)
        da = FusedBatchNormGradV2[T=half, U=float, data_format="NCHW", is_training=false](db, x, v, v, w)
        p = Placeholder[dtype=bool]
        side = Switch[T=half](x, p)
        c = FusedBatchNormV3[T=half, U=float, is_training=false](x, v, v, v, v)
        late = Neg[T=float](c:1)
        sum = Add[T=half](c, side:1)
        d = Relu[T=half](sum)
        e = FusedBatchNormV3[T=half, U=float, is_training=false](x, v, v, v, v)
        sum_e = Add[T=half](side:1, e)
        f = Relu[T=half](sum_e)
        "#,
        expect![[r#"
            x = Placeholder[dtype=half]
            v = Placeholder[dtype=float]
            w = Placeholder[dtype=float]
            b = _FusedBatchNormEx[T=half, U=float, activation_mode="Relu", data_format="NCHW", epsilon=0.0001, exponential_avg_factor=1.0, is_training=false, num_side_inputs=0](x, v, w, v, w)
            seen = Neg[T=half](b)
            da = _FusedBatchNormActivationGrad[T=half, U=float, activation_mode="Relu", data_format="NCHW", epsilon=0.0001, is_training=false](x, x, v, v, w, w)
            p = Placeholder[dtype=bool]
            side = Switch[T=half](x, p)
            c = FusedBatchNormV3[T=half, U=float, is_training=false](x, v, v, v, v)
            late = Neg[T=float](c:1)
            sum = Add[T=half](c, side:1)
            d = Relu[T=half](sum)
            f = _FusedBatchNormEx[T=half, U=float, activation_mode="Relu", data_format="NHWC", epsilon=0.0001, exponential_avg_factor=1.0, is_training=false, num_side_inputs=1](x, v, v, v, v, side:1)
        "#]],
    )
}

#[test]
fn fuse_norms_keeps_nodes_with_other_readers_or_late_inputs() -> Result<()> {
    let text = r#"
        x = Placeholder[dtype=float]
        v = Placeholder[dtype=float]
        seen = FusedBatchNormV3[T=float, U=float](x, v, v, v, v)
        seen_active = Relu[T=float](seen)
        fetched = Identity[T=float](seen)
        deviation = FusedBatchNormV3[T=float, U=float](x, v, v, v, v)
        from_it = Neg[T=float](deviation:2)
        sum = AddV2[T=float](deviation, from_it)
        active_sum = Relu[T=float](sum)
        twice = FusedBatchNormV3[T=float, U=float](x, v, v, v, v)
        doubled = AddV2[T=float](twice, twice)
        active_double = Relu[T=float](doubled)
        here = FusedBatchNormV3[T=float, U=float](x, v, v, v, v) @"/device:GPU:0"
        there = Relu[T=float](here) @"/device:GPU:1"
        p = Placeholder[dtype=bool]
        chosen = Switch[T=float](x, p)
        lives = FusedBatchNormV3[T=float, U=float](x, v, v, v, v)
        may_be_dead = AddV2[T=float](lives, chosen:1)
        active_dead = Relu[T=float](may_be_dead)
        averages = NoOp(^lives)
        volumes = FusedBatchNormV3[T=float, U=float, data_format="NDHWC"](x, v, v, v, v)
        active_volumes = Relu[T=float](volumes)
        one = FusedBatchNormV3[T=float, U=float](x, v, v, v, v)
        also = Relu[T=float](one)
        as_well = Relu[T=float](one)
        back = ReluGrad[T=float](x, also)
        of_other_scale = FusedBatchNormGradV3[T=float, U=float](back, x, p2, one:3, one:4, one:5)
        p2 = Placeholder[dtype=float]
        back_seen = ReluGrad[T=float](x, also)
        of_seen = FusedBatchNormGradV3[T=float, U=float](back_seen, x, v, one:3, one:4, one:5)
        is_seen = Neg[T=float](back_seen)
        back_other = ReluGrad[T=float](x, also)
        of_other_epsilon = FusedBatchNormGradV3[T=float, U=float, epsilon=0.5](back_other, x, v, one:3, one:4, one:5)
    "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(fuse_norms(graph.clone(), &|_| true)?.to_text(), graph.to_text());
    Ok(())
}

/// The fused gradient would read the variable a second time, when the variable may have another value.
#[test]
fn fuse_norms_does_not_read_a_reference_twice() -> Result<()> {
    let text = r#"
        x = Placeholder[dtype=float]
        v = VariableV2[dtype=float, shape=<2>]
        read = Identity[T=float](v)
        a = FusedBatchNormV3[T=float, U=float](x, read, read, read, read)
        b = Relu[T=float](a)
        c = Relu[T=float](a)
        db = ReluGrad[T=float](x, b)
        da = FusedBatchNormGradV3[T=float, U=float](db, x, read, a:3, a:4, a:5)
    "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(fuse_norms(graph.clone(), &|_| true)?.to_text(), graph.to_text());
    Ok(())
}

#[test]
fn fuse_norms_handles_long_graphs() -> Result<()> {
    let mut text = String::from("x0 = Placeholder[dtype=float]\nv = Placeholder[dtype=float]\n");
    for i in 1..=20_000 {
        let before = i - 1;
        text += &format!("n{i} = FusedBatchNormV3[T=float, U=float](x{before}, v, v, v, v)\n");
        text += &format!("s{i} = AddV2[T=float](n{i}, x{before})\nx{i} = Relu[T=float](s{i})\n");
        text += &format!("m{i} = Neg[T=float](n{i}:1)\n");
    }
    let graph = fuse_norms(Graph::from_text(&text)?, &|_| true)?;
    validate(&graph)?;
    assert_eq!(graph.len(), 2 + 2 * 20_000);
    Ok(())
}

#[test]
fn fuse_splits_long_chains_and_handles_long_graphs() -> Result<()> {
    let mut text = String::from("%versions producer=21 min_consumer=0\nx0 = Placeholder[dtype=float]\n");
    for i in 1..=100_000 {
        text += &format!("x{i} = Neg[T=float](x{})\n", i - 1);
    }
    let graph = fuse(Graph::from_text(&text)?, &|node| node.op.name() == "Neg")?;
    validate(&graph)?;
    assert_eq!(graph.len(), 1 + 100_000usize.div_ceil(64));
    assert!(graph.find("x100000").is_some_and(|id| graph.node(id).op.name() == "_FusedElementwise"));
    Ok(())
}
