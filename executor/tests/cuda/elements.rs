//! Elements of datasets that are on GPUs before steps ask for them, in the graphs that `tf.data` makes of
//! `prefetch_to_device` and of iterators of several devices.

use super::Fallible;
use super::trained::Machine;
use graph::{Code, Graph, NodeId, Output, Tensor};

/// Rows of numbers with their places, and functions of the handle and the incarnation of who has them.
const ROWS: &str = r#"
    %function same
      %arg handle: string
      %arg incarnation: int64
      %output handle_again: string
      %output incarnation_again: int64
      %return handle_again = handle
      %return incarnation_again = incarnation
    %end
    numbers = Const[dtype=float, value=float<5,3>{0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0}]
    places = Const[dtype=int32, value=int32<5>{0, 1, 2, 3, 4}]
    axis = Const[dtype=int32, value=int32<1>{0}]
    two = Const[dtype=int64, value=int64<>{2}]
    host = Const[dtype=string, value=string<>{"/device:CPU:0"}]
    rows = TensorSliceDataset[Toutput_types=[float, int32], output_shapes=OF](numbers, places) @"/device:CPU:0"
"#;

/// How GPU number `#` brings rows over: a function of its own calls, on the CPU, one that asks who has them.
const ON_GPU: &str = r#"
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
      %return numbers = "call:output:0"
      %return place = "call:output:1"
    %end
    elements_# = GeneratorDataset[TYPES, output_shapes=OF, Tinit_func_args=[string, int64], Tnext_func_args=[string], Tfinalize_func_args=[], init_func=@same, next_func=@next_#, finalize_func=@same](handle, incarnation, host) @"/device:GPU:#"
    ahead_# = PrefetchDataset[TYPES, output_shapes=OF](elements_#, two) @"/device:GPU:#"
    iterator_# = IteratorV2[TYPES, output_shapes=OF, shared_name="", container=""]() @"/device:GPU:#"
    make_# = MakeIterator(ahead_#, iterator_#) @"/device:GPU:#"
    row_# = IteratorGetNext[TYPES, output_shapes=OF](iterator_#) @"/device:GPU:#"
    sum_# = Sum[T=float](row_#, axis) @"/device:GPU:#"
"#;

/// An iterator of the CPU's.
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

/// One of two GPUs'.
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

fn graph(source: &str, ask: &str, gpus: usize) -> Fallible<Graph> {
    let on_gpu = |gpu: usize| ON_GPU.replace("ASK", ask.trim()).replace('#', &gpu.to_string());
    let text = ROWS.to_owned() + source + &(0..gpus).map(on_gpu).collect::<String>();
    let text = text.replace("TYPES", "output_types=[float, int32]").replace("OF", "[<3>, <>]");
    Ok(Graph::from_text(&text)?)
}

fn node(graph: &Graph, name: &str) -> Fallible<NodeId> {
    let found = graph.nodes().find(|(_, node)| &*node.name == name).map(|(id, _)| id);
    found.ok_or_else(|| format!("no {name}").into())
}

/// What the GPUs' iterators give until there is no more, step by step: for each a sum, and a place.
fn steps(machine: &Machine, graph: &Graph, begin: &[&[&str]], gpus: usize) -> Fallible<Vec<Vec<Tensor>>> {
    let session = machine.session(graph.clone())?;
    for nodes in begin {
        let nodes = nodes.iter().map(|name| node(graph, name)).collect::<Fallible<Vec<_>>>()?;
        session.run(&[], &[], &nodes)?;
    }
    let mut fetches = Vec::new();
    for gpu in 0..gpus {
        fetches.push(Output { node: node(graph, &format!("sum_{gpu}"))?, index: 0 });
        fetches.push(Output { node: node(graph, &format!("row_{gpu}"))?, index: 1 });
    }
    let mut given = Vec::new();
    loop {
        match session.run(&[], &fetches, &[]) {
            Ok(values) => given.push(values),
            Err(error) => {
                assert_eq!(error.code(), Code::OutOfRange, "{error}");
                return Ok(given);
            }
        }
    }
}

/// The sum and the place of a row.
fn row(place: i32) -> [Tensor; 2] {
    [Tensor::from(3.0 * place as f32), Tensor::from(place)]
}

#[test]
fn elements_come_to_a_gpu_once_and_before_they_are_asked_for() -> Fallible {
    let graph = graph(ONE, ASK_ONE, 1)?;
    let machine = Machine::with_gpu(true)?;
    let given = steps(&machine, &graph, &[&["begin"], &["make_0"]], 1)?;
    assert_eq!(given, [0, 1, 2, 3, 4].map(|place| row(place).to_vec()));
    let log = machine.log();
    assert_eq!(log.iter().filter(|line| *line == "copy in 12 on 1").count(), 5, "{log:#?}");
    Ok(())
}

#[test]
fn elements_are_dealt_out_to_two_gpus() -> Fallible {
    let graph = graph(DEALT, ASK_SHARD, 2)?;
    let machine = Machine::with_two_gpus()?;
    // Begun twice: what was dealt before is gone.
    let begin: [&[&str]; 2] = [&["begin", "make_0", "make_1"]; 2];
    let given = steps(&machine, &graph, &begin, 2)?;
    assert_eq!(given, [0, 2].map(|place| [row(place), row(place + 1)].concat()));
    machine.log();
    Ok(())
}
