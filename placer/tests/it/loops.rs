//! Tests of loops in the partitioner: a loop on one device stays whole, edges at its border may cross, and a
//! loop whose iterations cross devices gets control loops.

use crate::support::{Result, device, devices, graph_of, print};
use anabranch_placer::{Names, PartitionOptions, Split, partition, placed_devices};
use expect_test::{Expect, expect};
use graph::{Graph, NodeId};

const CLUSTER: &[&str] = &["ps:0/CPU:0", "w:0/CPU:0", "w:0/CPU:1"];

/// Returns the text of a loop whose body is on the device `body`.
fn loop_text(body: &str) -> String {
    format!(
        "start = Const() @ps:0/CPU:0
         enter = Enter(start) @ps:0/CPU:0 frame_name=loop
         merge = Merge(enter, next) @w:0/CPU:0 N=2
         more = Const(^merge) @w:0/CPU:0 dtype=bool
         condition = LoopCond(more) @w:0/CPU:0
         switch = Switch(merge, condition) @ps:0/CPU:0
         body = Identity(switch:1) @{body}
         next = NextIteration(body) @ps:0/CPU:0
         exit = Exit(switch) @ps:0/CPU:0
         end = Identity(exit) @ps:0/CPU:0"
    )
}

fn placed(text: &str) -> Result<Graph> {
    let mut graph = graph_of(text)?;
    for id in graph.ids().collect::<Vec<NodeId>>() {
        let full = device(&graph.node(id).device)?.to_string();
        graph.node_mut(id).device = full.into();
    }
    Ok(graph)
}

fn check(text: &str, split: Split, expected: Expect) -> Result<()> {
    let (set, graph) = (devices(CLUSTER)?, placed(text)?);
    let placement = placed_devices(&graph, &set)?;
    let names = Names::master();
    let options = PartitionOptions { devices: &set, split, names: &names };
    let shown = match partition(&graph, &placement, &options) {
        Ok(parts) => parts.iter().map(|p| format!("-- {}\n{}", p.task, print(&p.graph))).collect(),
        Err(error) => format!("{:?}: {error}", error.code()),
    };
    expected.assert_eq(&shown);
    Ok(())
}

#[test]
fn control_flow_nodes_move_to_the_device_of_the_loop_body() -> Result<()> {
    check(
        &loop_text("w:0/CPU:0"),
        Split::Task,
        expect![[r#"
        -- /job:ps/replica:0/task:0
        start = Const() @ps:0/CPU:0
        end = Identity(exit_S3) @ps:0/CPU:0
        start_S0 = _Send(start) @ps:0/CPU:0 T=float recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_start
        exit_S3 = _Recv() @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_10_exit T=float
        -- /job:w/replica:0/task:0
        enter = Enter(start_S1) @w:0/CPU:0
        merge = Merge(enter, next) @w:0/CPU:0
        more = Const(^merge) @w:0/CPU:0
        condition = LoopCond(more) @w:0/CPU:0
        switch = Switch(merge, condition) @w:0/CPU:0
        body = Identity(switch:1) @w:0/CPU:0
        next = NextIteration(body) @w:0/CPU:0
        exit = Exit(switch) @w:0/CPU:0
        start_S1 = _Recv() @w:0/CPU:0 recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_start T=float
        exit_S2 = _Send(exit) @w:0/CPU:0 T=float recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_10_exit
    "#]],
    )
}

#[test]
fn a_loop_over_two_tasks_gets_control_loops_on_receiving_devices() -> Result<()> {
    check(
        &loop_text("ps:0/CPU:0"),
        Split::Task,
        expect![[r#"
        -- /job:ps/replica:0/task:0
        start = Const() @ps:0/CPU:0
        body = Identity(switch_S13, ^_cloopbody_S1) @ps:0/CPU:0
        end = Identity(exit_S17) @ps:0/CPU:0
        _cloopbody_S0 = Enter(_cloopbody_S4) @ps:0/CPU:0
        _cloopbody_S1 = Merge(_cloopbody_S0, _cloopbody_S3) @ps:0/CPU:0
        _cloopbody_S2 = Switch(_cloopbody_S1, condition_S19, ^_cloopbody_S1) @ps:0/CPU:0
        _cloopbody_S3 = NextIteration(_cloopbody_S2:1) @ps:0/CPU:0
        _cloopbody_S4 = Const() @ps:0/CPU:0
        start_S10 = _Send(start) @ps:0/CPU:0 T=float recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_start
        switch_S13 = _Recv(^_cloopbody_S1) @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_7_switch T=float
        body_S14 = _Send(body) @ps:0/CPU:0 T=float recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_9_body
        exit_S17 = _Recv() @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_12_exit T=float
        condition_S19 = _Recv(^_cloopbody_S1) @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_17_condition T=bool
        -- /job:w/replica:0/task:0
        enter = Enter(start_S11) @w:0/CPU:0
        merge = Merge(enter, next) @w:0/CPU:0
        more = Const(^merge) @w:0/CPU:0
        condition = LoopCond(more) @w:0/CPU:0
        switch = Switch(merge, condition) @w:0/CPU:0
        next = NextIteration(body_S15, ^_cloopnext_S6) @w:0/CPU:0
        exit = Exit(switch) @w:0/CPU:0
        _cloopnext_S5 = Enter(_cloopnext_S9) @w:0/CPU:0
        _cloopnext_S6 = Merge(_cloopnext_S5, _cloopnext_S8) @w:0/CPU:0
        _cloopnext_S7 = Switch(_cloopnext_S6, condition) @w:0/CPU:0
        _cloopnext_S8 = NextIteration(_cloopnext_S7:1) @w:0/CPU:0
        _cloopnext_S9 = Const() @w:0/CPU:0
        start_S11 = _Recv() @w:0/CPU:0 recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_start T=float
        switch_S12 = _Send(switch:1) @w:0/CPU:0 T=float recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_7_switch
        body_S15 = _Recv(^_cloopnext_S6) @w:0/CPU:0 recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_9_body T=float
        exit_S16 = _Send(exit) @w:0/CPU:0 T=float recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_12_exit
        condition_S18 = _Send(condition) @w:0/CPU:0 T=bool recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_17_condition
    "#]],
    )
}

#[test]
fn the_split_by_task_adds_control_loops_for_devices_of_one_task() -> Result<()> {
    check(
        &loop_text("w:0/CPU:1"),
        Split::Task,
        expect![[r#"
        -- /job:ps/replica:0/task:0
        start = Const() @ps:0/CPU:0
        end = Identity(exit_S13) @ps:0/CPU:0
        start_S10 = _Send(start) @ps:0/CPU:0 T=float recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_start
        exit_S13 = _Recv() @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_12_exit T=float
        -- /job:w/replica:0/task:0
        enter = Enter(start_S11) @w:0/CPU:0
        merge = Merge(enter, next) @w:0/CPU:0
        more = Const(^merge) @w:0/CPU:0
        condition = LoopCond(more) @w:0/CPU:0
        switch = Switch(merge, condition) @w:0/CPU:0
        body = Identity(switch:1, ^_cloopbody_S1) @w:0/CPU:1
        next = NextIteration(body, ^_cloopnext_S6) @w:0/CPU:0
        exit = Exit(switch) @w:0/CPU:0
        _cloopbody_S0 = Enter(_cloopbody_S4) @w:0/CPU:1
        _cloopbody_S1 = Merge(_cloopbody_S0, _cloopbody_S3) @w:0/CPU:1
        _cloopbody_S2 = Switch(_cloopbody_S1, condition, ^_cloopbody_S1) @w:0/CPU:1
        _cloopbody_S3 = NextIteration(_cloopbody_S2:1) @w:0/CPU:1
        _cloopbody_S4 = Const() @w:0/CPU:1
        _cloopnext_S5 = Enter(_cloopnext_S9) @w:0/CPU:0
        _cloopnext_S6 = Merge(_cloopnext_S5, _cloopnext_S8) @w:0/CPU:0
        _cloopnext_S7 = Switch(_cloopnext_S6, condition) @w:0/CPU:0
        _cloopnext_S8 = NextIteration(_cloopnext_S7:1) @w:0/CPU:0
        _cloopnext_S9 = Const() @w:0/CPU:0
        start_S11 = _Recv() @w:0/CPU:0 recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_start T=float
        exit_S12 = _Send(exit) @w:0/CPU:0 T=float recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_12_exit
    "#]],
    )?;
    // The graph is split by task, and then one of its partitions is split by device.
    let (set, graph) = (devices(CLUSTER)?, placed(&loop_text("w:0/CPU:1"))?);
    let placement = placed_devices(&graph, &set)?;
    let names = Names::master();
    let options = PartitionOptions { devices: &set, split: Split::Task, names: &names };
    let parts = partition(&graph, &placement, &options)?;
    let part = &parts[1].graph;
    let (names, placement) = (Names::worker(), placed_devices(part, &set)?);
    let options = PartitionOptions { devices: &set, split: Split::Device, names: &names };
    let parts = partition(part, &placement, &options)?;
    let shown: String = parts.iter().map(|p| format!("--\n{}", print(&p.graph))).collect();
    expect![[r#"
        --
        enter = Enter(start_S11) @w:0/CPU:0
        merge = Merge(enter, next) @w:0/CPU:0
        more = Const(^merge) @w:0/CPU:0
        condition = LoopCond(more) @w:0/CPU:0
        switch = Switch(merge, condition) @w:0/CPU:0
        next = NextIteration(body_G3, ^_cloopnext_S6) @w:0/CPU:0
        exit = Exit(switch) @w:0/CPU:0
        _cloopnext_S5 = Enter(_cloopnext_S9) @w:0/CPU:0
        _cloopnext_S6 = Merge(_cloopnext_S5, _cloopnext_S8) @w:0/CPU:0
        _cloopnext_S7 = Switch(_cloopnext_S6, condition) @w:0/CPU:0
        _cloopnext_S8 = NextIteration(_cloopnext_S7:1) @w:0/CPU:0
        _cloopnext_S9 = Const() @w:0/CPU:0
        start_S11 = _Recv() @w:0/CPU:0 recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_start T=float
        exit_S12 = _Send(exit) @w:0/CPU:0 T=float recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_12_exit
        switch_G0 = _Send(switch:1) @w:0/CPU:0 T=float recv_device=w:0/CPU:1 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_7_switch
        body_G3 = _Recv(^_cloopnext_S6) @w:0/CPU:0 _origin=body recv_device=w:0/CPU:0 send_device=w:0/CPU:1 incarnation=3 tensor_name=edge_9_body T=float
        condition_G4 = _Send(condition) @w:0/CPU:0 T=bool recv_device=w:0/CPU:1 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_16_condition
        --
        body = Identity(switch_G1, ^_cloopbody_S1) @w:0/CPU:1
        _cloopbody_S0 = Enter(_cloopbody_S4) @w:0/CPU:1
        _cloopbody_S1 = Merge(_cloopbody_S0, _cloopbody_S3) @w:0/CPU:1
        _cloopbody_S2 = Switch(_cloopbody_S1, condition_G5, ^_cloopbody_S1) @w:0/CPU:1
        _cloopbody_S3 = NextIteration(_cloopbody_S2:1) @w:0/CPU:1
        _cloopbody_S4 = Const() @w:0/CPU:1
        switch_G1 = _Recv(^_cloopbody_S1) @w:0/CPU:1 recv_device=w:0/CPU:1 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_7_switch T=float
        body_G2 = _Send(body) @w:0/CPU:1 T=float recv_device=w:0/CPU:0 send_device=w:0/CPU:1 incarnation=3 tensor_name=edge_9_body
        condition_G5 = _Recv(^_cloopbody_S1) @w:0/CPU:1 recv_device=w:0/CPU:1 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_16_condition T=bool
    "#]].assert_eq(&shown);
    Ok(())
}

#[test]
fn nested_loops_get_nested_control_loops() -> Result<()> {
    let text = "
        start = Const() @w:0/CPU:0
        enter = Enter(start) @w:0/CPU:0 frame_name=outer
        merge = Merge(enter, next) @w:0/CPU:0 N=2
        more = Const(^merge) @w:0/CPU:0 dtype=bool
        condition = LoopCond(more) @w:0/CPU:0
        switch = Switch(merge, condition) @w:0/CPU:0
        in_enter = Enter(switch:1) @w:0/CPU:0 frame_name=inner
        in_merge = Merge(in_enter, in_next) @w:0/CPU:0 N=2
        in_more = Const(^in_merge) @w:0/CPU:0 dtype=bool
        in_condition = LoopCond(in_more) @w:0/CPU:0
        in_switch = Switch(in_merge, in_condition) @w:0/CPU:0
        in_body = Identity(in_switch:1) @ps:0/CPU:0
        in_next = NextIteration(in_body) @w:0/CPU:0
        in_exit = Exit(in_switch) @w:0/CPU:0
        next = NextIteration(in_exit) @w:0/CPU:0
        exit = Exit(switch) @w:0/CPU:0";
    check(
        text,
        Split::Task,
        expect![[r#"
        -- /job:ps/replica:0/task:0
        in_body = Identity(in_switch_S19, ^_cloopin_body_S1) @ps:0/CPU:0
        _cloopin_body_S0 = Enter(_cloopin_body_S5) @ps:0/CPU:0
        _cloopin_body_S1 = Merge(_cloopin_body_S0, _cloopin_body_S3) @ps:0/CPU:0
        _cloopin_body_S2 = Switch(_cloopin_body_S1, in_condition_S23, ^_cloopin_body_S1) @ps:0/CPU:0
        _cloopin_body_S3 = NextIteration(_cloopin_body_S2:1) @ps:0/CPU:0
        _cloopin_body_S4 = Enter(_cloopin_body_S8) @ps:0/CPU:0
        _cloopin_body_S5 = Merge(_cloopin_body_S4, _cloopin_body_S7) @ps:0/CPU:0
        _cloopin_body_S6 = Switch(_cloopin_body_S5, condition_S25, ^_cloopin_body_S5) @ps:0/CPU:0
        _cloopin_body_S7 = NextIteration(_cloopin_body_S6:1) @ps:0/CPU:0
        _cloopin_body_S8 = Const() @ps:0/CPU:0
        in_switch_S19 = _Recv(^_cloopin_body_S1) @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_14_in_switch T=float
        in_body_S20 = _Send(in_body) @ps:0/CPU:0 T=float recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_16_in_body
        in_condition_S23 = _Recv(^_cloopin_body_S1) @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_25_in_condition T=bool
        condition_S25 = _Recv(^_cloopin_body_S5) @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_32_condition T=bool
        -- /job:w/replica:0/task:0
        start = Const() @w:0/CPU:0
        enter = Enter(start) @w:0/CPU:0
        merge = Merge(enter, next) @w:0/CPU:0
        more = Const(^merge) @w:0/CPU:0
        condition = LoopCond(more) @w:0/CPU:0
        switch = Switch(merge, condition) @w:0/CPU:0
        in_enter = Enter(switch:1) @w:0/CPU:0
        in_merge = Merge(in_enter, in_next) @w:0/CPU:0
        in_more = Const(^in_merge) @w:0/CPU:0
        in_condition = LoopCond(in_more) @w:0/CPU:0
        in_switch = Switch(in_merge, in_condition) @w:0/CPU:0
        in_next = NextIteration(in_body_S21, ^_cloopin_next_S10) @w:0/CPU:0
        in_exit = Exit(in_switch) @w:0/CPU:0
        next = NextIteration(in_exit) @w:0/CPU:0
        exit = Exit(switch) @w:0/CPU:0
        _cloopin_next_S9 = Enter(_cloopin_next_S14) @w:0/CPU:0
        _cloopin_next_S10 = Merge(_cloopin_next_S9, _cloopin_next_S12) @w:0/CPU:0
        _cloopin_next_S11 = Switch(_cloopin_next_S10, in_condition) @w:0/CPU:0
        _cloopin_next_S12 = NextIteration(_cloopin_next_S11:1) @w:0/CPU:0
        _cloopin_next_S13 = Enter(_cloopin_next_S17) @w:0/CPU:0
        _cloopin_next_S14 = Merge(_cloopin_next_S13, _cloopin_next_S16) @w:0/CPU:0
        _cloopin_next_S15 = Switch(_cloopin_next_S14, condition) @w:0/CPU:0
        _cloopin_next_S16 = NextIteration(_cloopin_next_S15:1) @w:0/CPU:0
        _cloopin_next_S17 = Const() @w:0/CPU:0
        in_switch_S18 = _Send(in_switch:1) @w:0/CPU:0 T=float recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_14_in_switch
        in_body_S21 = _Recv(^_cloopin_next_S10) @w:0/CPU:0 recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_16_in_body T=float
        in_condition_S22 = _Send(in_condition) @w:0/CPU:0 T=bool recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_25_in_condition
        condition_S24 = _Send(condition) @w:0/CPU:0 T=bool recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_32_condition
    "#]],
    )
}

#[test]
fn a_loop_without_a_condition_that_crosses_devices_is_refused() -> Result<()> {
    let text = loop_text("ps:0/CPU:0").replace("condition = LoopCond(more)", "condition = Identity(more)");
    let text = text.replace("(more) @w:0/CPU:0", "(more) @w:0/CPU:0 T=bool");
    check(
        &text,
        Split::Task,
        expect!["InvalidArgument: A cross-device loop must have a pivot predicate: loop"],
    )?;
    check(
        &loop_text("w:0/CPU:1"),
        Split::Device,
        expect![[r#"
        InvalidArgument: The edge from {{node enter}} to {{node merge}} crosses devices inside loop 'loop', which has no control loop there
        	 [[merge]]"#]],
    )
}
