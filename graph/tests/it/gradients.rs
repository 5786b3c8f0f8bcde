//! Tests of the nodes that gradients add.

use anabranch_graph::{
    DType, Error, GradientOptions, Graph, Node, Output, Result, Scope, gradients_with, ops, parse_output_name,
};
use expect_test::{Expect, expect};

fn outputs(graph: &Graph, names: &str) -> Result<Vec<Output>> {
    names
        .split_whitespace()
        .map(|name| {
            let (node, index) = parse_output_name(name).unwrap_or((name, 0));
            let id = graph.find(node).ok_or_else(|| Error::invalid(format!("no node {node}")))?;
            Ok(Output::new(id, index as usize))
        })
        .collect()
}

/// Checks the nodes that the gradients of `ys` with respect to `xs` add to the graph of `text`, and then the
/// gradients.
fn check_with(
    text: &str,
    ys: &str,
    xs: &str,
    given: &str,
    colocate: bool,
    stop: &str,
    expected: Expect,
) -> Result<()> {
    let graph = Graph::from_text(text)?;
    let scope = Scope::over(graph.clone())?;
    let given: Vec<Option<Output>> = outputs(&graph, given)?.into_iter().map(Some).collect();
    let options = GradientOptions { colocate, stop: outputs(&graph, stop)? };
    let result = gradients_with(&scope, &outputs(&graph, ys)?, &outputs(&graph, xs)?, &given, &options);
    match result {
        Err(error) => expected.assert_eq(&error.to_string()),
        Ok(results) => {
            let after = scope.finish()?;
            let mut added: Vec<String> =
                after.to_text().lines().skip(graph.to_text().lines().count()).map(str::to_owned).collect();
            let names = results.iter().map(|r| r.map_or("none".to_owned(), |r| after.output_name(r)));
            added.push(names.collect::<Vec<_>>().join(" "));
            expected.assert_eq(&added.join("\n"));
        }
    }
    Ok(())
}

fn check(text: &str, ys: &str, xs: &str, expected: Expect) -> Result<()> {
    check_with(text, ys, xs, "", false, "", expected)
}

const DIAMOND: &str = "
    x = Placeholder[dtype=float, shape=<2>]
    other = Placeholder[dtype=float, shape=<2>]
    a = Relu[T=float](x)
    b = Relu6[T=float](x)
    sum = AddN[N=3, T=float](a, b, a)
    aside = Relu[T=float](other)
    cut = StopGradient[T=float](sum)
";

#[test]
fn gradients_that_arrive_at_one_output_are_summed() -> Result<()> {
    check(
        DIAMOND,
        "sum",
        "x a other sum",
        expect![[r#"
        gradients/grad_ys_0 = OnesLike[T=float](sum)
        gradients/b_grad/Relu6Grad = Relu6Grad[T=float](gradients/grad_ys_0, b)
        gradients/AddN = AddN[N=2, T=float](gradients/grad_ys_0, gradients/grad_ys_0)
        gradients/a_grad/ReluGrad = ReluGrad[T=float](gradients/AddN, a)
        gradients/AddN_1 = AddN[N=2, T=float](gradients/b_grad/Relu6Grad, gradients/a_grad/ReluGrad)
        gradients/AddN_1:0 gradients/AddN:0 none gradients/grad_ys_0:0"#]],
    )?;
    check(
        DIAMOND,
        "sum sum",
        "a",
        expect![[r#"
        gradients/grad_ys_0 = OnesLike[T=float](sum)
        gradients/grad_ys_1 = OnesLike[T=float](sum)
        gradients/AddN = AddN[N=2, T=float](gradients/grad_ys_0, gradients/grad_ys_1)
        gradients/AddN_1 = AddN[N=2, T=float](gradients/AddN, gradients/AddN)
        gradients/AddN_1:0"#]],
    )
}

#[test]
fn given_gradients_replace_ones() -> Result<()> {
    check_with(
        DIAMOND,
        "a",
        "x",
        "other",
        true,
        "",
        expect![[r#"
        gradients/a_grad/ReluGrad = ReluGrad[T=float, _class=["loc:@a"]](other, a)
        gradients/a_grad/ReluGrad:0"#]],
    )?;
    check_with(DIAMOND, "a b", "x", "other", false, "", expect!["1 gradients are given for 2 outputs"])?;
    let text = "x = Placeholder[dtype=float, shape=<2>]\ny = Relu[T=float](x)\nd = Placeholder[dtype=double]\ns = Placeholder[dtype=float, shape=<3>]";
    check_with(
        text,
        "y",
        "x",
        "d",
        false,
        "",
        expect!["Gradient type double generated for tensor y:0 of type float"],
    )?;
    check_with(text, "y", "x", "s", false, "", expect!["the gradient given for y:0 is of another shape"])
}

#[test]
fn no_gradient_flows_through_stops_leaves_and_integers() -> Result<()> {
    check(
        DIAMOND,
        "cut",
        "x",
        expect![[r#"
        gradients/grad_ys_0 = OnesLike[T=float](cut)
        none"#]],
    )?;
    check_with(
        DIAMOND,
        "sum",
        "x",
        "",
        false,
        "a",
        expect![[r#"
            gradients/grad_ys_0 = OnesLike[T=float](sum)
            gradients/b_grad/Relu6Grad = Relu6Grad[T=float](gradients/grad_ys_0, b)
            gradients/b_grad/Relu6Grad:0"#]],
    )?;
    let integers = "x = Placeholder[dtype=int32]\ny = Identity[T=int32](x)";
    check(integers, "y", "x", expect!["none"])
}

#[test]
fn an_x_between_another_x_and_y_gets_its_gradient() -> Result<()> {
    let chain = "
        w = Placeholder[dtype=float, shape=<>]
        a = Relu[T=float](w)
        b = Relu[T=float](a)
    ";
    check(
        chain,
        "b",
        "w a b",
        expect![[r#"
        gradients/grad_ys_0 = Const[dtype=float, value=float<>{1.0}]
        gradients/b_grad/ReluGrad = ReluGrad[T=float](gradients/grad_ys_0, b)
        gradients/a_grad/ReluGrad = ReluGrad[T=float](gradients/b_grad/ReluGrad, a)
        gradients/a_grad/ReluGrad:0 gradients/b_grad/ReluGrad:0 gradients/grad_ys_0:0"#]],
    )
}

#[test]
fn resource_variables_have_gradients_at_their_handles() -> Result<()> {
    let text = r#"
        v = VarHandleOp[dtype=float, shape=<>, shared_name="v"]
        read = ReadVariableOp[dtype=float](v)
        y = Relu[T=float](read)
    "#;
    check(
        text,
        "y",
        "v read",
        expect![[r#"
        gradients/grad_ys_0 = Const[dtype=float, value=float<>{1.0}]
        gradients/y_grad/ReluGrad = ReluGrad[T=float](gradients/grad_ys_0, y)
        gradients/y_grad/ReluGrad:0 gradients/y_grad/ReluGrad:0"#]],
    )
}

#[test]
fn an_op_without_a_gradient_rule_is_named() -> Result<()> {
    let text = "
        x = Placeholder[dtype=float]
        y = SoftsignGrad[T=float](x, x)
        z = Identity[T=float](y)
    ";
    check(text, "z", "x", expect!["No gradient is defined for op 'SoftsignGrad' (node {{node y}})"])?;
    // The gradient of `z` with respect to `y` needs no gradient rule of the op of `y`.
    check(
        text,
        "z",
        "y",
        expect![[r#"
        gradients/grad_ys_0 = OnesLike[T=float](z)
        gradients/grad_ys_0:0"#]],
    )
}

#[test]
fn a_chain_of_a_million_nodes_has_a_gradient() -> Result<()> {
    let lookup = |name: &str| ops::lookup(name).ok_or_else(|| Error::invalid(format!("no {name}")));
    const LENGTH: usize = 1_000_000;
    let mut graph = Graph::with_capacity(LENGTH, LENGTH);
    let start = Node::new("x", lookup("Placeholder")?).with_attr("dtype", DType::Float);
    let first = graph.add(start, &[], &[])?;
    let mut last = first;
    let mut node = Node::new("", lookup("Identity")?).with_attr("T", DType::Float);
    for i in 1..LENGTH {
        node.name = format!("n{i}").into();
        last = graph.add(node.clone(), &[Output::from(last)], &[])?;
    }
    let scope = Scope::over(graph)?;
    let found = scope.gradients(&[last.into()], &[first.into()], &[])?;
    assert!(found[0].is_some());
    Ok(())
}
