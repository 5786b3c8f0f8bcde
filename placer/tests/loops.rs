//! Loops: they pass through a part whole, their borders may cross, their insides may not.

mod support;

use anabranch_placer::{Names, PartitionOptions, Split, partition};
use expect_test::expect;
use graph::ops::spec::{Arg, ArgType, AttrKind, AttrSpec};
use graph::{DType, Edge, Graph, Node, NodeId, Op, OpDef, Output, Role, ops};
use support::{Result, devices, print};

/// An op of control flow, with float inputs but for a last one that is a condition.
fn steering(
    name: &'static str,
    role: Role,
    inputs: usize,
    outputs: usize,
    has_condition: bool,
) -> &'static Op {
    let arg = |dtype| Arg { name: "x", ty: ArgType::Fixed(dtype), number_attr: None, is_ref: false };
    let mut takes = vec![arg(DType::Float); inputs];
    if has_condition {
        takes.push(arg(DType::Bool));
    }
    let gives = if role == Role::LoopCond { DType::Bool } else { DType::Float };
    let attrs = match role {
        Role::Enter => vec![AttrSpec {
            name: "frame_name",
            kind: AttrKind::Str,
            is_list: false,
            minimum: None,
            allowed: Vec::new(),
            default: None,
        }],
        _ => Vec::new(),
    };
    let def: &'static OpDef = Box::leak(Box::new(OpDef { name, role, ..OpDef::NEW }));
    Box::leak(Box::new(Op {
        def,
        inputs: takes,
        outputs: vec![arg(gives); outputs],
        attrs,
        index: ops::all().len(),
    }))
}

/// `start -> enter -> merge -> switch -> exit -> end`, `switch:1 -> body -> next -> merge`. `start`, `enter`,
/// `exit` and `end` ask for device 0, the rest for device 1, but for the body, which asks for `body`.
fn looping(body: u32) -> Result<(Graph, Vec<u32>)> {
    let constant = ops::lookup("Const").ok_or("no op")?;
    let identity = ops::lookup("Identity").ok_or("no op")?;
    let value = |dtype| graph::Tensor::zeros(dtype, graph::Shape::scalar());
    let typed = |name: &str| Node::new(name, identity).with_attr("T", DType::Float);
    let fixed = |name: &str, dtype| -> Result<Node> {
        Ok(Node::new(name, constant).with_attr("dtype", dtype).with_attr("value", value(dtype)?))
    };
    let of = |name: &'static str, role, inputs, outputs| {
        Node::new(name, steering(name, role, inputs, outputs, name == "switch"))
    };
    let mut condition = of("condition", Role::LoopCond, 0, 1);
    condition.op = steering("condition", Role::LoopCond, 0, 1, true);
    let nodes = vec![
        fixed("start", DType::Float)?,
        of("enter", Role::Enter, 1, 1).with_attr("frame_name", "while/loop"),
        of("merge", Role::Merge, 2, 1),
        fixed("more", DType::Bool)?,
        condition,
        of("switch", Role::Switch, 1, 2),
        typed("body"),
        of("next", Role::NextIteration, 1, 1),
        of("exit", Role::Exit, 1, 1),
        typed("end"),
    ];
    let id = NodeId::new;
    let data =
        |from: usize, port: usize, to: usize, input| Edge::data(Output::new(id(from), port), id(to), input);
    let edges = vec![
        data(0, 0, 1, 0),
        data(1, 0, 2, 0),
        data(7, 0, 2, 1),
        Edge::control(id(2), id(3)),
        data(3, 0, 4, 0),
        data(2, 0, 5, 0),
        data(4, 0, 5, 1),
        data(5, 1, 6, 0),
        data(6, 0, 7, 0),
        data(5, 0, 8, 0),
        data(8, 0, 9, 0),
    ];
    let graph = Graph::assemble(nodes, edges.into_iter())?;
    Ok((graph, vec![0, 0, 1, 1, 1, 1, body, 0, 0, 0]))
}

fn split(body: u32) -> Result<String> {
    let set = devices(&["ps:0/CPU:0", "w:0/CPU:0"])?;
    let (graph, placement) = looping(body)?;
    let names = Names::master();
    let options = PartitionOptions { devices: &set, split: Split::Task, names: &names };
    Ok(match partition(&graph, &placement, &options) {
        Ok(parts) => parts.iter().map(|p| format!("-- {}\n{}", p.task, print(&p.graph))).collect(),
        Err(error) => format!("{:?}: {error}", error.code()),
    })
}

#[test]
fn a_loop_goes_where_its_body_is() -> Result<()> {
    expect![[r#"
        -- /job:ps/replica:0/task:0
        start = Const() @ps:0/CPU:0
        end = Identity(exit_S3) @ps:0/CPU:0
        start_S0 = _Send(start) @ps:0/CPU:0 T=float recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_start
        exit_S3 = _Recv() @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_10_exit T=float
        -- /job:w/replica:0/task:0
        enter = enter(start_S1) @w:0/CPU:0
        merge = merge(enter, next) @w:0/CPU:0
        more = Const(^merge) @w:0/CPU:0
        condition = condition(more) @w:0/CPU:0
        switch = switch(merge, condition) @w:0/CPU:0
        body = Identity(switch:1) @w:0/CPU:0
        next = next(body) @w:0/CPU:0
        exit = exit(switch) @w:0/CPU:0
        start_S1 = _Recv() @w:0/CPU:0 recv_device=w:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_start T=float
        exit_S2 = _Send(exit) @w:0/CPU:0 T=float recv_device=ps:0/CPU:0 send_device=w:0/CPU:0 incarnation=2 tensor_name=edge_10_exit
    "#]].assert_eq(&split(1)?);
    Ok(())
}

#[test]
fn a_loop_over_two_tasks_is_refused() -> Result<()> {
    expect![[r#"
        Unimplemented: The edge from {{node switch}} to {{node body}} crosses devices inside loop 'while/loop'; loops run on one device
        	 [[body]]"#]].assert_eq(&split(0)?);
    Ok(())
}
