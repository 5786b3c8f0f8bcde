//! Tests of the transfers between partitions, and that the partitions together are equivalent to the graph.

use crate::support::{Result, device, devices, graph_of, print, small_cluster};
use anabranch_placer::{
    DeviceSet, Names, Partition, PartitionOptions, Split, partition, placed_devices, rewrite_for_run,
};
use expect_test::{Expect, expect};
use graph::{AttrValue, CONTROL, Graph, Node, NodeId, Output, RecvOrigin, ops};
use rustc_hash::FxHashMap;

/// Expands the short device names of test graphs to full names.
fn place(graph: &mut Graph) -> Result<()> {
    for id in graph.ids() {
        let full = device(&graph.node(id).device)?.to_string();
        graph.node_mut(id).device = full.into();
    }
    Ok(())
}

fn split(text: &str, set: &DeviceSet, split: Split, names: &Names) -> Result<Vec<Partition>> {
    let mut graph = graph_of_placed(text)?;
    place(&mut graph)?;
    let placement = placed_devices(&graph, set)?;
    Ok(partition(&graph, &placement, &PartitionOptions { devices: set, split, names })?)
}

/// Parses a graph whose nodes have short device names.
fn graph_of_placed(text: &str) -> Result<Graph> {
    let mut graph = graph_of(text)?;
    graph.versions.producer = 27;
    Ok(graph)
}

fn show(parts: &[Partition]) -> String {
    let mut text = String::new();
    for part in parts {
        let name = part.device.as_ref().map_or_else(|| part.task.to_string(), |d| d.to_string());
        text.push_str(&format!("-- {name}\n{}", print(&part.graph)));
    }
    text
}

fn check(text: &str, expected: Expect) -> Result<()> {
    let shown = match split(text, &small_cluster()?, Split::Task, &Names::master()) {
        Ok(parts) => show(&parts),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&shown);
    Ok(())
}

#[test]
fn a_graph_on_one_device_is_one_partition() -> Result<()> {
    check(
        "a = Const() @ps:0/CPU:0\nb = Identity(a, ^a) @ps:0/CPU:0",
        expect![[r#"
        -- /job:ps/replica:0/task:0
        a = Const() @ps:0/CPU:0
        b = Identity(a, ^a) @ps:0/CPU:0
    "#]],
    )
}

#[test]
fn a_tensor_is_sent_once_to_each_task() -> Result<()> {
    check(
        "a = Const() @worker:0/CPU:0
         x = Identity(a) @worker:1/CPU:0
         y = AddV2(a, a) @worker:1/CPU:0
         z = Identity(a) @ps:0/CPU:0
         w = AddV2(x, y) @worker:1/CPU:0",
        expect![[r#"
            -- /job:ps/replica:0/task:0
            z = Identity(a_S3) @ps:0/CPU:0
            a_S3 = _Recv() @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_3_a T=float
            -- /job:worker/replica:0/task:0
            a = Const() @worker:0/CPU:0
            a_S0 = _Send(a) @worker:0/CPU:0 T=float recv_device=worker:1/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_0_a
            a_S2 = _Send(a) @worker:0/CPU:0 T=float recv_device=ps:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_3_a
            -- /job:worker/replica:0/task:1
            x = Identity(a_S1) @worker:1/CPU:0
            y = AddV2(a_S1, a_S1) @worker:1/CPU:0
            w = AddV2(x, y) @worker:1/CPU:0
            a_S1 = _Recv() @worker:1/CPU:0 recv_device=worker:1/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_0_a T=float
        "#]],
    )
}

#[test]
fn each_output_is_sent_separately() -> Result<()> {
    check(
        "a = Const() @ps:0/CPU:0
         d = Const() @ps:0/CPU:0 dtype=int32
         s = Split(d, a) @ps:0/CPU:0 num_split=2
         x = AddV2(s:1, s) @worker:0/CPU:0",
        expect![[r#"
            -- /job:ps/replica:0/task:0
            a = Const() @ps:0/CPU:0
            d = Const() @ps:0/CPU:0
            s = Split(d, a) @ps:0/CPU:0
            s_S0 = _Send(s:1) @ps:0/CPU:0 T=float recv_device=worker:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_2_s
            s_S2 = _Send(s) @ps:0/CPU:0 T=float recv_device=worker:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_3_s
            -- /job:worker/replica:0/task:0
            x = AddV2(s_S1, s_S3) @worker:0/CPU:0
            s_S1 = _Recv() @worker:0/CPU:0 recv_device=worker:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_2_s T=float
            s_S3 = _Recv() @worker:0/CPU:0 recv_device=worker:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_3_s T=float
        "#]],
    )
}

#[test]
fn a_control_edge_crosses_as_an_empty_tensor() -> Result<()> {
    check(
        "a = Const() @worker:0/CPU:0
         x = NoOp(^a) @worker:1/CPU:0
         y = Identity(a, ^a) @worker:1/CPU:0",
        expect![[r#"
            -- /job:worker/replica:0/task:0
            a = Const() @worker:0/CPU:0
            a/ctrl_S0 = Const(^a) @worker:0/CPU:0
            a_S1 = _Send(a/ctrl_S0) @worker:0/CPU:0 T=float recv_device=worker:1/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_0_a
            a_S4 = _Send(a) @worker:0/CPU:0 T=float recv_device=worker:1/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_1_a
            -- /job:worker/replica:0/task:1
            x = NoOp(^a_S3) @worker:1/CPU:0
            y = Identity(a_S5, ^a_S3) @worker:1/CPU:0
            a_S2 = _Recv() @worker:1/CPU:0 recv_device=worker:1/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_0_a T=float
            a_S3 = Identity(a_S2) @worker:1/CPU:0
            a_S5 = _Recv() @worker:1/CPU:0 recv_device=worker:1/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_1_a T=float
        "#]],
    )
}

#[test]
fn a_reference_is_read_for_each_reader_after_its_other_inputs() -> Result<()> {
    check(
        "v = VariableV2() @ps:0/CPU:0
         k = Const() @worker:1/CPU:0
         n = NoOp() @worker:0/CPU:0
         x = AddV2(v, k, ^n) @worker:1/CPU:0
         y = Identity(v) @worker:1/CPU:0",
        expect![[r#"
            -- /job:ps/replica:0/task:0
            v = VariableV2() @ps:0/CPU:0
            v_S0 = _Send(v, ^n_S9) @ps:0/CPU:0 T=float recv_device=worker:1/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_v
            n_S8 = _Recv() @ps:0/CPU:0 recv_device=ps:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_2_n T=float
            n_S9 = Identity(n_S8) @ps:0/CPU:0
            v_S10 = _Send(v) @ps:0/CPU:0 T=float recv_device=worker:1/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_3_v
            -- /job:worker/replica:0/task:0
            n = NoOp() @worker:0/CPU:0
            n/ctrl_S2 = Const(^n) @worker:0/CPU:0
            n_S3 = _Send(n/ctrl_S2) @worker:0/CPU:0 T=float recv_device=worker:1/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_2_n
            n/ctrl_S6 = Const(^n) @worker:0/CPU:0
            n_S7 = _Send(n/ctrl_S6) @worker:0/CPU:0 T=float recv_device=ps:0/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_2_n
            -- /job:worker/replica:0/task:1
            k = Const() @worker:1/CPU:0
            x = AddV2(v_S1, k, ^n_S5) @worker:1/CPU:0
            y = Identity(v_S11) @worker:1/CPU:0
            v_S1 = _Recv(^k, ^n_S5) @worker:1/CPU:0 recv_device=worker:1/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_v T=float
            n_S4 = _Recv() @worker:1/CPU:0 recv_device=worker:1/CPU:0 send_device=worker:0/CPU:0 incarnation=2 tensor_name=edge_2_n T=float
            n_S5 = Identity(n_S4) @worker:1/CPU:0
            v_S11 = _Recv() @worker:1/CPU:0 recv_device=worker:1/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_3_v T=float
        "#]],
    )
}

#[test]
fn a_reference_input_cannot_cross_devices() -> Result<()> {
    check(
        "v = VariableV2() @ps:0/CPU:0\nk = Const() @ps:0/CPU:0\na = Assign(v, k) @worker:0/CPU:0",
        expect![[r#"
        {{node a}} takes a reference to {{node v}}, which is on another device
        	 [[a]]"#]],
    )
}

#[test]
fn new_names_avoid_names_of_the_graph() -> Result<()> {
    check(
        "a = Const() @ps:0/CPU:0\na_S0 = Identity(a) @worker:0/CPU:0",
        expect![[r#"
        -- /job:ps/replica:0/task:0
        a = Const() @ps:0/CPU:0
        a_S1 = _Send(a) @ps:0/CPU:0 T=float recv_device=worker:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_a
        -- /job:worker/replica:0/task:0
        a_S0 = Identity(a_S2) @worker:0/CPU:0
        a_S2 = _Recv() @worker:0/CPU:0 recv_device=worker:0/CPU:0 send_device=ps:0/CPU:0 incarnation=1 tensor_name=edge_0_a T=float
    "#]],
    )
}

#[test]
fn a_worker_splits_its_partition_by_device() -> Result<()> {
    let set = devices(&["w:0/CPU:0", "w:0/GPU:0", "w:1/CPU:0"])?;
    let text = "a = Const() @w:1/CPU:0
         x = Identity(a) @w:0/GPU:0
         y = Identity(a) @w:0/CPU:0
         z = AddV2(x, y) @w:0/CPU:0";
    let parts = split(text, &set, Split::Task, &Names::master())?;
    expect![[r#"
        -- /job:w/replica:0/task:0
        x = Identity(a_S1) @w:0/GPU:0
        y = Identity(a_S1) @w:0/CPU:0
        z = AddV2(x, y) @w:0/CPU:0
        a_S1 = _Recv() @w:0/GPU:0 recv_device=w:0/GPU:0 send_device=w:1/CPU:0 incarnation=3 tensor_name=edge_0_a T=float
        -- /job:w/replica:0/task:1
        a = Const() @w:1/CPU:0
        a_S0 = _Send(a) @w:1/CPU:0 T=float recv_device=w:0/GPU:0 send_device=w:1/CPU:0 incarnation=3 tensor_name=edge_0_a
    "#]].assert_eq(&show(&parts));
    let own = &parts[0].graph;
    let names = Names::worker();
    let options = PartitionOptions { devices: &set, split: Split::Device, names: &names };
    let again = partition(own, &placed_devices(own, &set)?, &options)?;
    expect![[r#"
        -- /job:w/replica:0/task:0/device:CPU:0
        y = Identity(a_S1_G1) @w:0/CPU:0
        z = AddV2(x_G3, y) @w:0/CPU:0
        a_S1_G1 = _Recv() @w:0/CPU:0 recv_device=w:0/CPU:0 send_device=w:0/GPU:0 incarnation=2 tensor_name=edge_1_a_S1 T=float
        x_G3 = _Recv() @w:0/CPU:0 _origin=x recv_device=w:0/CPU:0 send_device=w:0/GPU:0 incarnation=2 tensor_name=edge_2_x T=float
        -- /job:w/replica:0/task:0/device:GPU:0
        x = Identity(a_S1) @w:0/GPU:0
        a_S1 = _Recv() @w:0/GPU:0 recv_device=w:0/GPU:0 send_device=w:1/CPU:0 incarnation=3 tensor_name=edge_0_a T=float
        a_S1_G0 = _Send(a_S1) @w:0/GPU:0 T=float recv_device=w:0/CPU:0 send_device=w:0/GPU:0 incarnation=2 tensor_name=edge_1_a_S1
        x_G2 = _Send(x) @w:0/GPU:0 T=float recv_device=w:0/CPU:0 send_device=w:0/GPU:0 incarnation=2 tensor_name=edge_2_x
    "#]].assert_eq(&show(&again));
    Ok(())
}

#[test]
fn recvs_within_a_task_record_their_source_node_or_feed() -> Result<()> {
    let set = devices(&["w:0/CPU:0", "w:0/GPU:0"])?;
    let mut graph = graph_of_placed(
        "p = Placeholder() @w:0/CPU:0
         c = Const() @w:0/CPU:0
         two = Unique(c) @w:0/CPU:0
         last = NoOp(^c) @w:0/CPU:0
         chosen = Switch(c, b) @w:0/CPU:0
         b = Const() @w:0/CPU:0 dtype=bool
         x = Identity(two) @w:0/GPU:0
         y = Identity(two:1) @w:0/GPU:0 T=int32
         z = AddV2(p, chosen, ^last) @w:0/GPU:0",
    )?;
    place(&mut graph)?;
    let run = rewrite_for_run(&graph, &["p"], &[] as &[&str], &["x", "y", "z"], &set, 0)?;
    let names = Names::worker();
    let options = PartitionOptions { devices: &set, split: Split::Device, names: &names };
    let parts = partition(&run, &placed_devices(&run, &set)?, &options)?;
    let of_gpu = parts.iter().filter(|part| part.device.as_ref().is_some_and(|d| &*d.device_type == "GPU"));
    let receives = of_gpu.flat_map(|part| part.graph.nodes()).filter(|(_, node)| node.op.name() == "_Recv");
    let lines: Vec<String> =
        receives.map(|(_, node)| format!("{}: {:?}\n", node.name, RecvOrigin::of(node))).collect();
    expect![[r#"
        two_G1: Some(RecvOrigin { node: "two", is_fed: false })
        two_G3: Some(RecvOrigin { node: "two", is_fed: false })
        _recv_p_0_G5: Some(RecvOrigin { node: "_recv_p_0", is_fed: true })
        chosen_G7: None
        last_G10: Some(RecvOrigin { node: "last", is_fed: false })
    "#]]
    .assert_eq(&lines.concat());
    Ok(())
}

#[test]
fn nodes_without_a_device_are_refused() -> Result<()> {
    let graph = graph_of("a = NoOp()")?;
    let error = placed_devices(&graph, &small_cluster()?).err().map(|e| e.to_string());
    expect![[r#"
        Missing device name in: {{node a}}
        	 [[a]]"#]]
    .assert_eq(&error.unwrap_or_default());
    let graph = graph_of("a = NoOp() @/job:ps/replica:0/task:3/device:CPU:0")?;
    let error = placed_devices(&graph, &small_cluster()?).err().map(|e| e.to_string());
    expect![[r#"
        {{node a}} is placed on '/job:ps/replica:0/task:3/device:CPU:0', which is not among the devices [/job:ps/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:1/device:CPU:0]
        	 [[a]]"#]].assert_eq(&error.unwrap_or_default());
    Ok(())
}

/// A pseudorandom generator with a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

fn random_graph(seed: u64, size: usize, set: &DeviceSet) -> Result<(Graph, Vec<u32>)> {
    let mut random = Random(seed);
    let (constant, add) = (ops::lookup("Const").ok_or("Const")?, ops::lookup("AddV2").ok_or("AddV2")?);
    let mut graph = Graph::new();
    graph.versions.producer = 21;
    let mut placement = Vec::new();
    for i in 0..size {
        let source = |random: &mut Random| NodeId::new(random.below(i));
        let control: Vec<NodeId> =
            (0..if i == 0 { 0 } else { random.below(3) }).map(|_| source(&mut random)).collect();
        if i == 0 || random.below(5) == 0 {
            let value = graph::Tensor::zeros(graph::DType::Float, graph::Shape::scalar())?;
            let node = Node::new(format!("n{i}"), constant)
                .with_attr("value", value)
                .with_attr("dtype", graph::DType::Float);
            graph.add(node, &[], &control)?;
        } else {
            let node = Node::new(format!("n{i}"), add).with_attr("T", graph::DType::Float);
            graph.add(node, &[source(&mut random).into(), source(&mut random).into()], &control)?;
        }
        placement.push(random.below(set.len()) as u32);
    }
    Ok((graph, placement))
}

/// Returns an attribute as text.
fn text(node: &Node, attr: &str) -> String {
    match node.attrs.get(attr) {
        Some(AttrValue::Str(s)) => String::from_utf8_lossy(s).into_owned(),
        other => format!("{other:?}"),
    }
}

/// Returns the node of the original graph that an input of a partition comes from, traced back through Recv,
/// Send and the nodes of control transfers.
fn origin(
    parts: &[Partition],
    senders: &FxHashMap<String, (usize, NodeId)>,
    part: usize,
    from: Output,
) -> String {
    let graph = &parts[part].graph;
    let node = graph.node(from.node);
    let is_new = node.name.contains("_S");
    match node.op.name() {
        "_Recv" if is_new => match senders.get(&key(node)) {
            Some(&(at, send)) => match parts[at].graph.input(send, 0) {
                Some(input) => origin(parts, senders, at, input),
                None => "nothing sent".to_owned(),
            },
            None => "nobody sends".to_owned(),
        },
        "Identity" if is_new => match graph.input(from.node, 0) {
            Some(input) => origin(parts, senders, part, input),
            None => "no input".to_owned(),
        },
        "Const" if is_new => format!("^{}", graph.node(graph.control_inputs(from.node)[0]).name),
        _ => format!("{}:{}", node.name, from.index),
    }
}

fn key(node: &Node) -> String {
    ["send_device", "send_device_incarnation", "recv_device", "tensor_name"].map(|a| text(node, a)).join(";")
}

#[test]
fn partitions_joined_at_their_transfers_are_the_graph() -> Result<()> {
    let set = devices(&["w:0/CPU:0", "w:0/GPU:0", "w:1/CPU:0", "w:2/CPU:0", "w:2/CPU:1"])?;
    for seed in 0..40 {
        let (graph, placement) = random_graph(seed, 60, &set)?;
        for how in [Split::Task, Split::Device] {
            let split = |names: &Names| {
                partition(&graph, &placement, &PartitionOptions { devices: &set, split: how, names })
            };
            let parts = split(&Names::master())?;
            check_equivalence(&graph, &placement, &set, &parts)?;
            let again = split(&Names::master())?;
            assert_eq!(show(&parts), show(&again), "seed {seed}");
        }
    }
    Ok(())
}

fn check_equivalence(graph: &Graph, placement: &[u32], set: &DeviceSet, parts: &[Partition]) -> Result<()> {
    let mut senders = FxHashMap::default();
    let mut receivers = FxHashMap::default();
    let mut places = FxHashMap::default();
    for (at, part) in parts.iter().enumerate() {
        assert_eq!(part.graph.versions, graph.versions);
        for (id, node) in part.graph.nodes() {
            match node.op.name() {
                "_Send" => {
                    assert!(senders.insert(key(node), (at, id)).is_none(), "{} sends twice", node.name)
                }
                "_Recv" => assert!(receivers.insert(key(node), (at, id)).is_none()),
                _ => {}
            }
            places.insert(node.name.to_string(), (at, id));
        }
    }
    assert_eq!(senders.len(), receivers.len());
    let mut kept = 0;
    for (id, node) in graph.nodes() {
        let &(at, here) = places.get(&*node.name).ok_or("a node is gone")?;
        kept += 1;
        let part = &parts[at];
        let twin = part.graph.node(here);
        let device = set.get(placement[id.index()]);
        assert!(node.computes_same_as(twin));
        assert_eq!(twin.device, device.text);
        assert_eq!(part.task, device.name.task_name());
        let inputs: Vec<String> = graph.inputs(id).iter().map(|&o| graph.output_name(o)).collect();
        let arrived: Vec<String> =
            part.graph.inputs(here).iter().map(|&o| origin(parts, &senders, at, o)).collect();
        assert_eq!(inputs, arrived, "{}", node.name);
        let mut control: Vec<String> =
            graph.control_inputs(id).iter().map(|c| format!("^{}", graph.node(*c).name)).collect();
        let mut arrived: Vec<String> = part
            .graph
            .control_inputs(here)
            .iter()
            .map(|&c| {
                let from = origin(parts, &senders, at, Output { node: c, index: CONTROL });
                from.strip_suffix(&format!(":{CONTROL}")).map_or(from.clone(), |name| format!("^{name}"))
            })
            .collect();
        control.sort();
        arrived.sort();
        assert_eq!(control, arrived, "{}", node.name);
    }
    let new: usize = parts.iter().map(|p| p.graph.len()).sum::<usize>() - kept;
    let orders =
        parts.iter().flat_map(|p| p.graph.nodes()).filter(|(_, n)| n.name.contains("/ctrl_S")).count();
    assert_eq!(new, 2 * senders.len() + 2 * orders);
    Ok(())
}
