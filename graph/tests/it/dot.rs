//! Tests of the conversion of graphs to Graphviz text.

use anabranch_graph::{Graph, Result};
use expect_test::{Expect, expect};

fn check(text: &str, expected: Expect) -> Result<()> {
    expected.assert_eq(&Graph::from_text(text)?.to_dot());
    Ok(())
}

#[test]
fn devices_are_clusters_and_control_edges_dashed() -> Result<()> {
    check(
        r#"
        init = NoOp
        x = Placeholder[dtype=float] @"/job:ps"
        "y \"1\"" = IdentityN[T=[float, float]](x, x, ^init) @"/job:worker"
        z = Identity[T=float]("y \"1\"":1) @"/job:worker"
        "#,
        expect![[r#"
            digraph {
              rankdir=TB;
              node [shape=box, fontsize=10];
              n0 [label="init\nNoOp"];
              subgraph cluster_1 {
                label="/job:ps";
                n1 [label="x\nPlaceholder"];
              }
              subgraph cluster_2 {
                label="/job:worker";
                n2 [label="y \"1\"\nIdentityN"];
                n3 [label="z\nIdentity"];
              }
              n1 -> n2;
              n1 -> n2 [label="0:1"];
              n0 -> n2 [style=dashed];
              n2 -> n3 [label="1:0"];
            }
        "#]],
    )
}
