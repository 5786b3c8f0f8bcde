//! Dataset elements that are prefetched to a device, in the graphs that `tf.data` builds for
//! `prefetch_to_device` and for multi-device iterators.

use super::Fallible;
use client::{Session, SessionOptions};
use graph::{Code, Graph, NodeId, Output, Tensor};
use train::Master;

/// The text of a graph with a dataset of rows and their indices, and with a function that returns an iterator's handle
/// and incarnation unchanged.
const ROWS: &str = r#"
    %function same
      %arg handle: string
      %arg incarnation: int64
      %output handle_again: string
      %output incarnation_again: int64
      nothing = Sub[T=int64](incarnation, incarnation)
      computed = AddV2[T=int64](incarnation, "nothing:z:0")
      %return handle_again = handle
      %return incarnation_again = "computed:z:0"
    %end
    numbers = Const[dtype=float, value=float<5,3>{0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0}]
    places = Const[dtype=int32, value=int32<5>{0, 1, 2, 3, 4}]
    axis = Const[dtype=int32, value=int32<1>{0}]
    two = Const[dtype=int64, value=int64<>{2}]
    host = Const[dtype=string, value=string<>{"/device:CPU:0"}]
    rows = TensorSliceDataset[Toutput_types=[float, int32], output_shapes=OF](numbers, places) @"/device:CPU:0"
"#;

/// The text of the nodes of device number `#`: a generator dataset whose function calls a function on the CPU, which
/// takes the next element of the source iterator.
const ON_DEVICE: &str = r#"
    %function asks_#
      %arg handle: string
      %arg incarnation: int64
      %output numbers: float
      %output place: int32
      ASK
      %return numbers = "next:components:0"
      %return place = "next:components:1"
    %end
    %function next_#
      %arg handle: string
      %arg incarnation: int64
      %arg host: string
      %output numbers: float
      %output place: int32
      call = RemoteCall[Tin=[string, int64], Tout=[float, int32], f=@asks_#](host, handle, incarnation)
      brought = Identity[T=float]("call:output:0")
      counted = Identity[T=int32]("call:output:1")
      %return numbers = "brought:output:0"
      %return place = "counted:output:0"
    %end
    elements_# = GeneratorDataset[TYPES, output_shapes=OF, Tinit_func_args=[string, int64], Tnext_func_args=[string], Tfinalize_func_args=[], init_func=@same, next_func=@next_#, finalize_func=@same](handle, incarnation, host) @"SOURCE"
    ahead_# = PrefetchDataset[TYPES, output_shapes=OF](elements_#, two) @"SOURCE"
    iterator_# = IteratorV2[TYPES, output_shapes=OF, shared_name="", container=""]() @"DEVICE"
    make_# = MakeIterator(ahead_#, iterator_#) @"DEVICE"
    row_# = IteratorGetNext[TYPES, output_shapes=OF](iterator_#) @"DEVICE"
    sum_# = Sum[T=float](row_#, axis) @"DEVICE"
"#;

/// The text of a source that is a single iterator on the CPU.
const ONE: &str = r#"
    source = IteratorV2[TYPES, output_shapes=OF, shared_name="", container=""]() @"/device:CPU:0"
    begin = MakeIterator(rows, source) @"/device:CPU:0"
    handle = IteratorToStringHandle(source) @"/device:CPU:0"
    incarnation = Const[dtype=int64, value=int64<>{0}]
"#;
const ASK_ONE: &str = "
      source = IteratorFromStringHandleV2[output_types=[]](handle)
      next = IteratorGetNext[TYPES, output_shapes=OF](\"source:resource_handle:0\")
";

/// The nodes, as text, of a multi-device iterator on the CPU that gives its elements to two devices in turn.
const DEALT: &str = r#"
    source = MultiDeviceIterator[TYPES, output_shapes=OF, devices=["a", "b"], shared_name="", container=""]() @"/device:CPU:0"
    begin = MultiDeviceIteratorInit(rows, source, two) @"/device:CPU:0"
    handle = MultiDeviceIteratorToStringHandle(source) @"/device:CPU:0"
    incarnation = Identity[T=int64](begin) @"/device:CPU:0"
"#;
const ASK_SHARD: &str = "
      source = MultiDeviceIteratorFromStringHandle[output_types=[]](handle)
      shard = Const[dtype=int32, value=int32<>{#}]
      next = MultiDeviceIteratorGetNextFromShard[TYPES, output_shapes=OF](\"source:multi_device_iterator:0\", \"shard:output:0\", incarnation)
";

/// Returns a graph of a source and of one generator dataset for each entry of `devices`, which names the device of the
/// dataset and the device of its iterator.
fn graph(source: &str, ask: &str, devices: &[[&str; 2]]) -> Fallible<Graph> {
    let on_device = |(number, [from, to]): (usize, &[&str; 2])| {
        ON_DEVICE
            .replace("ASK", ask.trim())
            .replace('#', &number.to_string())
            .replace("SOURCE", from)
            .replace("DEVICE", to)
    };
    let text = ROWS.to_owned() + source + &devices.iter().enumerate().map(on_device).collect::<String>();
    let text = text.replace("TYPES", "output_types=[float, int32]").replace("OF", "[<3>, <>]");
    Ok(Graph::from_text(&text)?)
}

fn node(graph: &Graph, name: &str) -> Fallible<NodeId> {
    let found = graph.nodes().find(|(_, node)| &*node.name == name).map(|(id, _)| id);
    found.ok_or_else(|| format!("no {name}").into())
}

/// Runs the nodes named in `begin`, one step for each list of names, and checks all elements that the devices'
/// iterators return.
fn check(master: &Master, graph: Graph, begin: &[&[&str]], devices: usize) -> Fallible {
    let Master::InProcess(server) = master else { return Err("another process's".into()) };
    let session = Session::on_server(server, graph.clone(), SessionOptions::default())?;
    for nodes in begin {
        let nodes = nodes.iter().map(|name| node(&graph, name)).collect::<Fallible<Vec<_>>>()?;
        session.run(&[], &[], &nodes)?;
    }
    let mut fetches = Vec::new();
    for device in 0..devices {
        fetches.push(Output { node: node(&graph, &format!("sum_{device}"))?, index: 0 });
        fetches.push(Output { node: node(&graph, &format!("row_{device}"))?, index: 1 });
    }
    let places: Vec<i32> = (0..5).collect();
    for places in places.chunks_exact(devices) {
        let rows = places.iter().flat_map(|&place| [Tensor::from(3.0 * place as f32), Tensor::from(place)]);
        assert_eq!(session.run(&[], &fetches, &[])?, rows.collect::<Vec<_>>());
    }
    let end = session.run(&[], &fetches, &[]).err().ok_or("there is no end")?;
    assert_eq!(end.code(), Code::OutOfRange, "{end}");
    Ok(())
}

/// Checks that an iterator on device `to` returns the elements of an iterator on the CPU, which a dataset on device
/// `from` prefetches.
pub(crate) fn copied(master: &Master, from: &str, to: &str) -> Fallible {
    check(master, graph(ONE, ASK_ONE, &[[from, to]])?, &[&["begin"], &["make_0"]], 1)
}

/// Checks that iterators on two devices, which may be the same, return the elements of a multi-device iterator in turn.
pub(crate) fn dealt(master: &Master, devices: [&str; 2]) -> Fallible {
    // The iterators are initialised twice; the second initialisation discards the elements prefetched after the first.
    check(
        master,
        graph(DEALT, ASK_SHARD, &devices.map(|device| [device; 2]))?,
        &[&["begin", "make_0", "make_1"][..]; 2],
        2,
    )
}

#[test]
fn cpu_iterator_elements_are_copied_to_a_device() -> Fallible {
    let (master, device) = crate::machine()?;
    copied(&master, device, device)
}

#[test]
fn elements_are_distributed_to_two_device_iterators() -> Fallible {
    let (master, device) = crate::machine()?;
    dealt(&master, [device; 2])
}
