//! Tests of function instantiation: attributes are substituted, inputs connected, and nodes named after functions
//! become calls.

use anabranch_graph::{Attrs, DType, Error, Graph, Result};
use expect_test::{Expect, expect};

/// Checks the graph that results from instantiating the function `main` of the library under these attributes.
fn check(library: &str, attrs: Attrs, expected: Expect) -> Result<()> {
    let library = Graph::from_text(library)?.library;
    let body = library.lookup("main").and_then(|f| f.instantiate(&attrs, &library));
    match body {
        Err(error) => expected.assert_eq(&error.to_string()),
        Ok(mut body) => {
            body.graph.library = Default::default();
            expected.assert_eq(&body.graph.to_text());
        }
    }
    Ok(())
}

fn attr(name: &str, value: impl Into<anabranch_graph::AttrValue>) -> Attrs {
    let mut attrs = Attrs::new();
    attrs.set(name, value);
    attrs
}

const GENERIC: &str = r#"
%function callee
  %attr T "type"
  %arg x: $T
  %output first: $T
  %output rest: $T
  %return first = x
  %return rest = x
%end
%function main
  %attr T "type" = float
  %attr N "int" = 2
  %arg xs: $N * $T
  %arg any: float
  %output sum: $T
  %output both: $N * $T
  %control_output done
  sum = AddN[T=$T, N=$N](xs, ^any)
  called = callee[T=$T, _tag=1]("xs:1", ^noop) @"/cpu:0"
  same = IdentityN[T=[float, float]]("called:rest:0", "called:first")
  noop = NoOp
  %return sum = "sum:sum:0"
  %return both = "same:output"
  %control_return done = noop
%end
"#;

#[test]
fn a_body_has_its_attributes_and_edges() -> Result<()> {
    check(
        GENERIC,
        Attrs::new(),
        expect![[r#"
            xs_0 = _Arg[T=float, index=0]
            xs_1 = _Arg[T=float, index=1]
            any = _Arg[T=float, index=2]
            sum = AddN[N=2, T=float](xs_0, xs_1, ^any)
            called = PartitionedCall[Tin=[float], Tout=[float, float], _tag=1, f=@callee[T=float]](xs_1, ^noop) @"/cpu:0"
            same = IdentityN[T=[float, float]](called:1, called)
            noop = NoOp
            sum_RetVal = _Retval[T=float, index=0](sum)
            both_RetVal = _Retval[T=float, index=1](same)
            both_1_RetVal = _Retval[T=float, index=2](same:1)
        "#]],
    )
}

#[test]
fn errors_name_the_node_that_does_not_fit() -> Result<()> {
    check(
        GENERIC,
        attr("T", DType::Int32),
        expect![[r#"
        Input 0 of node same was passed int32 from called:1 incompatible with expected float.
        	 [[{{node same}}]]"#]],
    )?;
    check(GENERIC, attr("N", 1i64), expect!["Node 'called': Unknown input node 'xs:1'"])?;
    check(GENERIC, attr("N", 1i64 << 40), expect!["attr 'N' of function main is 1099511627776"])?;
    check("%function other\n%end", Attrs::new(), expect!["Function main is not defined."])?;
    check(
        "%function main\n%arg x: $T\n%end",
        Attrs::new(),
        expect!["function main is called without its attr 'T'"],
    )?;
    check(
        "%function main\n%output y: float\n%end",
        Attrs::new(),
        expect!["function main does not say which node makes its output 'y'"],
    )?;
    check(
        "%function main\n%output y: float\n%return y = x\n%end",
        Attrs::new(),
        expect!["output 'y' of function main: no 'x'"],
    )?;
    check(
        "%function main\na = Nothing\n%end",
        Attrs::new(),
        expect![
            "Op type not registered 'Nothing' in this server's binary. The node that uses it is {{node a}}; docs/OPS.md lists the ops that are there"
        ],
    )?;
    check("%function main\na = NoOp(^b)\n%end", Attrs::new(), expect!["Node 'a': Unknown input node '^b'"])?;
    check(
        "%function main\n%arg x: float\na = Identity[T=float](\"b:output:0\")\nb = Identity[T=float](\"a:output:0\")\n%end",
        Attrs::new(),
        expect!["The graph has a cycle that no NextIteration closes, through node {{node a}}"],
    )
}

#[test]
fn a_library_is_reduced_to_the_functions_that_a_graph_reaches() -> Result<()> {
    let graph = Graph::from_text(
        "%function a\nn = b\n%end\n%function b\nn = NoOp[f=@c[g=[@d]]]\n%end\n%function c\n%end\n%function d\n%end\n\
         %function e\n%end\n%function da\n%end\n%gradient d da\n%gradient e da\n\
         call = StatefulPartitionedCall[Tin=[], Tout=[], f=@a]",
    )?;
    let reached = graph.library.reachable_from(&graph);
    let names: Vec<&str> = reached.functions().iter().map(|f| &*f.name).collect();
    assert_eq!(names, ["a", "b", "c", "d", "da"]);
    assert_eq!(reached.gradients().len(), 1);
    assert_eq!(
        graph.library.lookup("nobody").map_err(|e: Error| e.code()),
        Err(anabranch_graph::Code::NotFound)
    );
    Ok(())
}
