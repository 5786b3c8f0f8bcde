//! Tests of the removal of control edges, on graphs in the text format.

use anabranch_graph::passes::{remove_redundant_control_edges, validate};
use anabranch_graph::{DType, Error, Graph, Node, NodeId, Result, ops};
use expect_test::{Expect, expect};

/// Checks the resulting graph; `keep` names nodes, separated by spaces. A second application must change nothing.
fn check(keep: &str, text: &str, expected: Expect) -> Result<()> {
    let after = reduced(&Graph::from_text(text)?, keep)?;
    expected.assert_eq(&after.to_text());
    assert_eq!(reduced(&after, keep)?.to_text(), after.to_text(), "once is not enough");
    Ok(())
}

fn reduced(graph: &Graph, keep: &str) -> Result<Graph> {
    let find = |name: &str| graph.find(name).ok_or_else(|| Error::invalid(format!("no node {name}")));
    let keep = keep.split_whitespace().map(find).collect::<Result<Vec<NodeId>>>()?;
    let after = remove_redundant_control_edges(graph, &keep)?;
    validate(&after)?;
    Ok(after)
}

#[test]
fn implied_edges_are_removed() -> Result<()> {
    check(
        "out",
        r#"
        c = Const[dtype=float, value=float<>{1.0}]
        x = Placeholder[dtype=float](^c)
        y = Neg[T=float](x, ^x)
        z = Neg[T=float](y, ^x, ^y, ^c)
        other = Placeholder[dtype=float]
        out = AddV2[T=float](z, other, ^x, ^y, ^other, ^z)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            y = Neg[T=float](x)
            z = Neg[T=float](y)
            other = Placeholder[dtype=float]
            out = AddV2[T=float](z, other)
        "#]],
    )
}

#[test]
fn nodes_that_only_order_are_removed() -> Result<()> {
    check(
        "target",
        r#"
        a = Placeholder[dtype=float] @"/device:CPU:0"
        b = Placeholder[dtype=float] @"/device:CPU:0"
        nothing = NoOp @"/device:CPU:1"
        one = NoOp(^a, ^nothing) @"/device:CPU:0"
        two = NoOp(^one) @"/device:CPU:0"
        read = Identity[T=float](b, ^nothing) @"/device:CPU:0"
        many = NoOp(^two, ^read) @"/device:CPU:0"
        only = Neg[T=float](a, ^many) @"/device:CPU:0"
        target = NoOp(^only) @"/device:CPU:0"
        "#,
        expect![[r#"
            a = Placeholder[dtype=float] @"/device:CPU:0"
            b = Placeholder[dtype=float] @"/device:CPU:0"
            only = Neg[T=float](a, ^b) @"/device:CPU:0"
            target = NoOp(^only) @"/device:CPU:0"
        "#]],
    )
}

#[test]
fn nodes_with_other_uses_stay() -> Result<()> {
    let text = r#"
        %versions producer=21 min_consumer=0
        p = Placeholder[dtype=bool] @"/device:CPU:0"
        a = Placeholder[dtype=float] @"/device:CPU:0"
        b = Placeholder[dtype=float] @"/device:CPU:0"
        elsewhere = NoOp(^a) @"/device:CPU:1"
        one = Neg[T=float](b, ^elsewhere) @"/device:CPU:1"
        two = Neg[T=float](b, ^elsewhere) @"/device:CPU:1"
        both = NoOp(^one, ^two) @"/device:CPU:0"
        three = Neg[T=float](b, ^both) @"/device:CPU:0"
        four = Neg[T=float](b, ^both) @"/device:CPU:0"
        v = VariableV2[dtype=float, shape=<2>] @"/device:CPU:0"
        read = Identity[T=float](v) @"/device:CPU:0"
        s = Switch[T=float](a, p) @"/device:CPU:0"
        way = Identity[T=float](s:1) @"/device:CPU:0"
        anchor = NoOp(^three) @"/device:CPU:0"
        five = Neg[T=float, _class=["loc:@anchor"]](b, ^read, ^way, ^anchor, ^four) @"/device:CPU:0"
        "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(reduced(&graph, "five")?, graph);
    Ok(())
}

#[test]
fn edges_through_a_merge_imply_no_order() -> Result<()> {
    // A Merge runs as soon as one of its inputs is alive, so having run after the Merge does not imply having run after
    // both inputs.
    let text = r#"
        %versions producer=21 min_consumer=0
        p = Placeholder[dtype=bool]
        x = Placeholder[dtype=float]
        s = Switch[T=float](x, p)
        a = Neg[T=float](s)
        b = Relu[T=float](s:1)
        m = Merge[N=2, T=float](a, b)
        c = Neg[T=float](m, ^a)
        d = Placeholder[dtype=float]
        either = Merge[N=2, T=float](a, b, ^s)
        "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(reduced(&graph, "c d either")?, graph);
    Ok(())
}

#[test]
fn control_inputs_of_reference_readers_stay() -> Result<()> {
    let text = r#"
        %versions producer=21 min_consumer=0
        v = VariableV2[dtype=float, shape=<2>]
        x = Placeholder[dtype=float]
        set = Assign[T=float](v, x)
        y = Neg[T=float](x, ^set)
        sum = AddV2[T=float](v, y, ^set)
        "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(reduced(&graph, "sum")?, graph);
    Ok(())
}

#[test]
fn redundant_edges_in_loops_are_removed() -> Result<()> {
    check(
        "out",
        r#"
        start = Placeholder[dtype=float]
        enter = Enter[T=float, frame_name="loop"](start)
        merge = Merge[N=2, T=float](enter, next)
        go = Const[dtype=bool, value=bool<>{false}](^merge)
        more = LoopCond(go)
        switch = Switch[T=float](merge, more)
        exit = Exit[T=float](switch)
        at = Identity[T=float](switch:1)
        turn = NoOp(^at)
        a = Relu[T=float](at, ^turn)
        b = Neg[T=float](a, ^turn, ^at)
        next = NextIteration[T=float](b)
        out = Neg[T=float](exit)
        "#,
        expect![[r#"
            start = Placeholder[dtype=float]
            enter = Enter[T=float, frame_name="loop"](start)
            merge = Merge[N=2, T=float](enter, next)
            go = Const[dtype=bool, value=bool<>{false}](^merge)
            more = LoopCond(go)
            switch = Switch[T=float](merge, more)
            exit = Exit[T=float](switch)
            at = Identity[T=float](switch:1)
            a = Relu[T=float](at)
            b = Neg[T=float](a)
            next = NextIteration[T=float](b)
            out = Neg[T=float](exit)
        "#]],
    )
}

#[test]
fn a_million_nodes_are_handled() -> Result<()> {
    let op = |name| ops::lookup(name).ok_or_else(|| Error::invalid(format!("no {name}")));
    const LENGTH: usize = 1_000_000;
    let mut graph = Graph::with_capacity(LENGTH, 2 * LENGTH);
    let source = Node::new("", op("Placeholder")?).with_attr("dtype", DType::Float);
    let nothing = Node::new("", op("NoOp")?);
    // Each `NoOp` waits for the `NoOp` before it and for a new placeholder, and the pass removes the `NoOp`s, so the
    // list of awaited nodes grows by one node per `NoOp`.
    let mut last: Vec<NodeId> = Vec::new();
    while graph.len() < LENGTH {
        let name = |what: &str| format!("{what}{}", graph.len()).into();
        let (first, link) =
            (Node { name: name("x"), ..source.clone() }, Node { name: name("n"), ..nothing.clone() });
        last.push(graph.add(first, &[], &[])?);
        last = vec![graph.add(link, &[], &last)?];
    }
    let sources = graph.len() / 2;
    let after = remove_redundant_control_edges(&graph, &last)?;
    assert_eq!((after.len(), after.num_edges()), (sources + 1, sources));
    Ok(())
}
