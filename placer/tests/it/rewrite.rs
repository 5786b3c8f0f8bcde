//! Tests of feeds, fetches and targets, and of their errors.

use crate::support::{Result, graph_of, print, small_cluster};
use anabranch_placer::{normalise_endpoint, rewrite_for_run};
use expect_test::{Expect, expect};
use graph::Graph;
use graph::passes::lower;

const GRAPH: &str = "p = Placeholder() @/job:worker/replica:0/task:1/device:CPU:0
    k = Const() @/job:ps/replica:0/task:0/device:CPU:0
    d = Const() @/job:ps/replica:0/task:0/device:CPU:0 dtype=int32
    n = NoOp(^p) @/job:ps/replica:0/task:0/device:CPU:0
    a = AddV2(p, k) @/job:ps/replica:0/task:0/device:CPU:0
    s = Split(d, a) @/job:ps/replica:0/task:0/device:CPU:0 num_split=2
    v = VariableV2() @/job:ps/replica:0/task:0/device:CPU:0
    b = AddV2(s:1, v, ^n) @/job:ps/replica:0/task:0/device:CPU:0
    c = Identity(b) @/job:worker/replica:0/task:1/device:CPU:0
    as = Assign(v, k) @/job:ps/replica:0/task:0/device:CPU:0";

fn check(feeds: &[&str], fetches: &[&str], targets: &[&str], expected: Expect) -> Result<()> {
    check_in(&graph_of(GRAPH)?, feeds, fetches, targets, expected)
}

fn check_in(
    graph: &Graph,
    feeds: &[&str],
    fetches: &[&str],
    targets: &[&str],
    expected: Expect,
) -> Result<()> {
    let set = small_cluster()?;
    let client = set.client_device().ok_or("no client device")?;
    let outcome = match rewrite_for_run(graph, feeds, fetches, targets, &set, client) {
        Ok(graph) => print(&graph),
        Err(error) => format!("{:?}: {error}", error.code()),
    };
    expected.assert_eq(&outcome);
    Ok(())
}

#[test]
fn unneeded_nodes_are_removed() -> Result<()> {
    check(
        &[],
        &["a:0"],
        &[],
        expect![[r#"
        p = Placeholder() @worker:1/CPU:0
        k = Const() @ps:0/CPU:0
        a = AddV2(p, k) @ps:0/CPU:0
        _send_a_0 = _Send(a) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=a:0
    "#]],
    )?;
    check(
        &[],
        &[],
        &["n"],
        expect![[r#"
        p = Placeholder() @worker:1/CPU:0
        n = NoOp(^p) @ps:0/CPU:0
    "#]],
    )
}

#[test]
fn feeds_replace_endpoints_and_control_edges_of_placeholders() -> Result<()> {
    check(
        &["p:0"],
        &["b"],
        &[],
        expect![[r#"
        _recv_p_0 = _Recv() @worker:0/CPU:0 client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=p:0 T=float
        k = Const() @ps:0/CPU:0
        d = Const() @ps:0/CPU:0
        n = NoOp(^_recv_p_0) @ps:0/CPU:0
        a = AddV2(_recv_p_0, k) @ps:0/CPU:0
        s = Split(d, a) @ps:0/CPU:0
        v = VariableV2() @ps:0/CPU:0
        b = AddV2(s:1, v, ^n) @ps:0/CPU:0
        _send_b_0 = _Send(b) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=b:0
    "#]],
    )?;
    check(
        &["s:1", "k"],
        &["c:0", "s"],
        &["c"],
        expect![[r#"
        _recv_s_1 = _Recv() @worker:0/CPU:0 client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=s:1 T=float
        _recv_k_0 = _Recv() @worker:0/CPU:0 client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=k:0 T=float
        p = Placeholder() @worker:1/CPU:0
        d = Const() @ps:0/CPU:0
        n = NoOp(^p) @ps:0/CPU:0
        a = AddV2(p, _recv_k_0) @ps:0/CPU:0
        s = Split(d, a) @ps:0/CPU:0
        v = VariableV2() @ps:0/CPU:0
        b = AddV2(_recv_s_1, v, ^n) @ps:0/CPU:0
        c = Identity(b) @worker:1/CPU:0
        _send_c_0 = _Send(c) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=c:0
        _send_s_0 = _Send(s) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=s:0
    "#]],
    )
}

#[test]
fn references_are_fetched_by_value() -> Result<()> {
    check(
        &[],
        &["v"],
        &[],
        expect![[r#"
        v = VariableV2() @ps:0/CPU:0
        _send_v_0 = _Send(v) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=v:0
    "#]],
    )
}

#[test]
fn endpoint_spellings_are_normalised() -> Result<()> {
    assert_eq!(normalise_endpoint("p"), "p:0");
    assert_eq!(normalise_endpoint("p:0"), "p:0");
    assert_eq!(normalise_endpoint("s/x:1"), "s/x:1");
    check(
        &["p"],
        &["a", "a:0"],
        &[],
        expect![[r#"
        _recv_p_0 = _Recv() @worker:0/CPU:0 client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=p:0 T=float
        k = Const() @ps:0/CPU:0
        a = AddV2(_recv_p_0, k) @ps:0/CPU:0
        _send_a_0 = _Send(a) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=a:0
    "#]],
    )?;
    check(&["p", "p:0"], &["a"], &[], expect![[r#"InvalidArgument: Endpoint "p:0" fed more than once."#]])?;
    check(&["a:0"], &["a"], &[], expect!["InvalidArgument: a:0 is both fed and fetched."])
}

#[test]
fn a_fed_variable_is_read_but_not_written() -> Result<()> {
    check(
        &["v", "s:1"],
        &["b"],
        &[],
        expect![[r#"
        _recv_v_0 = _Recv() @worker:0/CPU:0 client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=v:0 T=float
        _recv_s_1 = _Recv() @worker:0/CPU:0 client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=s:1 T=float
        p = Placeholder() @worker:1/CPU:0
        n = NoOp(^p) @ps:0/CPU:0
        b = AddV2(_recv_s_1, _recv_v_0, ^n) @ps:0/CPU:0
        _send_b_0 = _Send(b) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=b:0
    "#]],
    )?;
    check(
        &["v"],
        &["as"],
        &[],
        expect![[r#"
        InvalidArgument: Input 0 of node as was passed float from _recv_v_0:0 incompatible with expected Ref(float).
        	 [[{{node as}}]]"#]],
    )
}

/// A call whose body has a side effect besides its value, and two consumers of the value: another call and a
/// node.
const CALLS: &str = r#"
%function doubled stateful
  %arg x: float
  %output y: float
  %control_output checked
  sum = AddV2[T=float](x, x)
  check = CheckNumerics[T=float, message="m"](x)
  %return y = "sum:z:0"
  %control_return checked = check
%end
x = Placeholder[dtype=float] @"/job:ps/replica:0/task:0/device:CPU:0"
first = doubled(x) @"/job:ps/replica:0/task:0/device:CPU:0"
second = doubled(first) @"/job:ps/replica:0/task:0/device:CPU:0"
after = Neg[T=float](first) @"/job:ps/replica:0/task:0/device:CPU:0"
"#;

#[test]
fn a_lowered_node_is_replaced_by_its_feed_or_its_computing_node() -> Result<()> {
    let graph = lower(&Graph::from_text(CALLS)?)?;
    check_in(
        &graph,
        &[],
        &["after"],
        &[],
        expect![[r#"
        x = Placeholder() @ps:0/CPU:0
        after = Neg(first/sum) @ps:0/CPU:0
        first/sum = AddV2(x, x) @ps:0/CPU:0
        _send_after_0 = _Send(after) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=after:0
    "#]],
    )?;
    check_in(
        &graph,
        &["first"],
        &["after", "second"],
        &[],
        expect![[r#"
        _recv_first_0 = _Recv() @worker:0/CPU:0 client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=first:0 T=float
        second = IdentityN(second/sum, ^second/output_control_node) @ps:0/CPU:0
        after = Neg(_recv_first_0) @ps:0/CPU:0
        second/sum = AddV2(_recv_first_0, _recv_first_0) @ps:0/CPU:0
        second/check = CheckNumerics(_recv_first_0) @ps:0/CPU:0
        second/output_control_node = NoOp(^second/sum, ^second/check) @ps:0/CPU:0
        _send_after_0 = _Send(after) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=after:0
        _send_second_0 = _Send(second) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=second:0
    "#]],
    )?;
    check_in(
        &graph,
        &["x"],
        &["first"],
        &[],
        expect![[r#"
        _recv_x_0 = _Recv() @worker:0/CPU:0 client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=x:0 T=float
        first = IdentityN(first/sum, ^first/output_control_node) @ps:0/CPU:0
        first/sum = AddV2(_recv_x_0, _recv_x_0) @ps:0/CPU:0
        first/check = CheckNumerics(_recv_x_0) @ps:0/CPU:0
        first/output_control_node = NoOp(^first/sum, ^first/check) @ps:0/CPU:0
        _send_first_0 = _Send(first) @worker:0/CPU:0 T=float client_terminated=true recv_device=worker:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=first:0
    "#]],
    )
}

#[test]
fn invalid_feeds_fetches_and_targets_are_refused() -> Result<()> {
    check(
        &["p:0"],
        &[],
        &[],
        expect!["InvalidArgument: Must specify at least one target to fetch or execute."],
    )?;
    check(&["n:0"], &["a"], &[], expect!["InvalidArgument: FeedInputs: n:0 should have output index < 0"])?;
    check(&["gone"], &["a"], &[], expect!["NotFound: FeedInputs: unable to find feed output gone:0"])?;
    check(&["p:3"], &["a"], &[], expect!["InvalidArgument: FeedInputs: p:3 should have output index < 1"])?;
    check(&[], &["gone:2"], &[], expect!["NotFound: FetchOutputs node gone:2: not found"])?;
    check(
        &[],
        &["a:1"],
        &[],
        expect!["InvalidArgument: FetchOutputs a:1: output index too large, must be < 1"],
    )?;
    check(
        &[],
        &["a"],
        &["gone", "n", "lost"],
        expect!["NotFound: PruneForTargets: Some target nodes not found: gone lost "],
    )
}
