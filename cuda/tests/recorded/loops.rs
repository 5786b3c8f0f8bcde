//! Loops on the recording driver: tensor arrays and stacks hold their elements in the GPU's memory, and loop
//! counters stay on the host.

use super::Fallible;
use super::partition::Partition;
use super::software::gpu::Gpu;
use super::software::recording::RecordingDriver;
use super::training::run;
use device::gpu_options::GpuOptions;
use graph::{Graph, Tensor};

/// Returns a graph with a loop of one iteration per row of the matrix `x`. The text `body` computes the next
/// state, `s/then`, and the next flow value, `flow/then`.
fn recurrence(body: &str) -> Fallible<Graph> {
    let frame = "frame_name=\"loop\", parallel_iterations=10";
    let text = format!(
        "
        zero = Const[dtype=int32, value=int32<>{{0}}]
        limit = Const[dtype=int32, value=int32<>{{3}}]
        all = Const[dtype=int32, value=int32<3>{{0, 1, 2}}]
        x = Const[dtype=float, value=float<3,2>{{1.0, 2.0, 3.0, 4.0, 5.0, 6.0}}]
        start = Const[dtype=float, value=float<2>{{0.0, 0.0}}]
        rows = TensorArrayV3[dtype=float](limit)
        filled = TensorArrayScatterV3[T=float](rows, all, x, rows:1)
        states = TensorArrayV3[dtype=float](limit)
        stack = StackV2[elem_type=float](limit)
        rows/in = Enter[T=resource, {frame}, is_constant=true](rows)
        filled/in = Enter[T=float, {frame}, is_constant=true](filled)
        states/in = Enter[T=resource, {frame}, is_constant=true](states)
        stack/in = Enter[T=resource, {frame}, is_constant=true](stack)
        limit/in = Enter[T=int32, {frame}, is_constant=true](limit)
        i/in = Enter[T=int32, {frame}](zero)
        s/in = Enter[T=float, {frame}](start)
        flow/in = Enter[T=float, {frame}](states:1)
        i = Merge[T=int32, N=2](i/in, i/next)
        s = Merge[T=float, N=2](s/in, s/next)
        flow = Merge[T=float, N=2](flow/in, flow/next)
        less = Less[T=int32](i, limit/in)
        more = LoopCond(less)
        i/switch = Switch[T=int32](i, more)
        s/switch = Switch[T=float](s, more)
        flow/switch = Switch[T=float](flow, more)
        i/at = Identity[T=int32](i/switch:1)
        one = Const[dtype=int32, value=int32<>{{1}}](^i/at)
        i/then = Add[T=int32](i/at, one)
        {body}
        i/next = NextIteration[T=int32](i/then)
        s/next = NextIteration[T=float](s/then)
        flow/next = NextIteration[T=float](flow/then)
        flow/exit = Exit[T=float](flow/switch)
        "
    );
    let lines: String = text.lines().map(|line| line.trim().to_owned() + "\n").collect();
    Ok(Graph::from_text(lines.trim_start())?)
}

const STEP: &str = "row = TensorArrayReadV3[dtype=float](rows/in, i/at, filled/in)
        s/then = AddV2[T=float](s/switch:1, row)
        flow/then = TensorArrayWriteV3[T=float](states/in, i/at, s/then, flow/switch:1)";

fn checked(graph: &Graph, kernels: &[(&str, usize)]) -> Fallible<Vec<String>> {
    let gpu = Gpu::new(1 << 20)?;
    run(&gpu, graph, 1)?;
    let log = gpu.driver.log();
    for (kernel, count) in kernels {
        let found = log.iter().filter(|line| line.starts_with(kernel)).count();
        assert_eq!(found, *count, "{kernel}: {log:#?}");
    }
    assert_eq!(gpu.driver.races(), Vec::<String>::new(), "{log:#?}");
    Ok(log)
}

#[test]
fn loop_over_tensor_arrays_copies_nothing_between_iterations() -> Fallible {
    let log = checked(&recurrence(STEP)?, &[("side_by_side<u32>", 1), ("zip<AddV2, float, float>", 3)])?;
    // The only uploads are of two constants, when their kernels are made; nothing is downloaded.
    assert_eq!(log.iter().filter(|line| line.starts_with("copy in")).count(), 2, "{log:#?}");
    assert_eq!(log.iter().filter(|line| line.starts_with("copy out")).count(), 0, "{log:#?}");
    Ok(())
}

#[test]
fn loop_conditions_run_on_the_host() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let text = recurrence(STEP)?.to_text();
    let both = text.replace("more = LoopCond(less)", "both = LogicalAnd(less, less)\nmore = LoopCond(both)");
    assert_ne!(text, both);
    let graph = executor::fuse(Graph::from_text(&both)?, &gpu.device)?;
    run(&gpu, &graph, 1)?;
    let log = gpu.driver.log();
    let is_for_truths = |line: &&String| line.starts_with("copy out") || line.starts_with("zip<LogicalAnd");
    assert_eq!(log.iter().find(is_for_truths), None, "{log:#?}");
    Ok(())
}

#[test]
fn gradients_of_one_array_element_are_summed_in_place() -> Fallible {
    let graph = recurrence(
        "back = TensorArrayGradV3[source=\"gradients\"](rows/in, filled/in)
        where = Const[dtype=int32, value=int32<>{0}](^i/at)
        s/then = TensorArrayReadV3[dtype=float](rows/in, i/at, filled/in)
        sent = TensorArrayWriteV3[T=float](back, where, s/then, back:1)
        flow/then = Identity[T=float](flow/switch:1, ^sent)",
    )?;
    // The first gradient that is written shares its memory with an element of the array of rows, so it is
    // copied before the second is added.
    checked(&graph, &[("update<Add, float>", 2)])?;
    Ok(())
}

#[test]
fn stack_push_and_pop_copy_nothing() -> Fallible {
    let graph = recurrence(
        "pushed = StackPushV2[T=float, swap_memory=true](stack/in, s/switch:1)
        popped = StackPopV2[elem_type=float](stack/in, ^pushed)
        s/then = Exp[T=float](popped)
        flow/then = Identity[T=float](flow/switch:1)",
    )?;
    let log = checked(&graph, &[("map<Exp, float, float>", 3)])?;
    assert_eq!(log.iter().filter(|line| line.starts_with("copy out")).count(), 0, "{log:#?}");
    Ok(())
}

/// A graph with a loop of eight kernels per iteration over fed rows; the final state is an output. Two values
/// are loop variables, and a matrix is a loop invariant.
const CELL: &str = "
    zero = Const[dtype=int32, value=int32<>{0}]
    all = Const[dtype=int32, value=int32<3>{0, 1, 2}]
    x <- float
    first <- float
    w <- float
    limit = Const[dtype=int32, value=int32<>{3}]
    rows = TensorArrayV3[dtype=float](limit)
    filled = TensorArrayScatterV3[T=float](rows, all, x, rows:1)
    rows/in = Enter[T=resource, FRAME, is_constant=true](rows)
    filled/in = Enter[T=float, FRAME, is_constant=true](filled)
    limit/in = Enter[T=int32, FRAME, is_constant=true](limit)
    w/in = Enter[T=float, FRAME, is_constant=true](w)
    i/in = Enter[T=int32, FRAME](zero)
    s/in = Enter[T=float, FRAME](first)
    t/in = Enter[T=float, FRAME](first)
    i = Merge[T=int32, N=2](i/in, i/next)
    s = Merge[T=float, N=2](s/in, s/next)
    t = Merge[T=float, N=2](t/in, t/next)
    less = Less[T=int32](i, limit/in)
    more = LoopCond(less)
    i/switch = Switch[T=int32](i, more)
    s/switch = Switch[T=float](s, more)
    t/switch = Switch[T=float](t, more)
    i/at = Identity[T=int32](i/switch:1)
    one = Const[dtype=int32, value=int32<>{1}](^i/at)
    i/then = Add[T=int32](i/at, one)
    row = TensorArrayReadV3[dtype=float](rows/in, i/at, filled/in)
    sum = AddV2[T=float](s/switch:1, row)
    product = MatMul[T=float](sum, w/in)
    new = Tanh[T=float](product)
    gate = Sigmoid[T=float](sum)
    kept = Mul[T=float](gate, t/switch:1)
    gained = Mul[T=float](gate, new)
    t/then = AddV2[T=float](kept, gained)
    s/then = Tanh[T=float](t/then)
    i/next = NextIteration[T=int32](i/then)
    s/next = NextIteration[T=float](s/then)
    t/next = NextIteration[T=float](t/then)
    s/exit = Exit[T=float](s/switch)
    t/exit = Exit[T=float](t/switch)
    a = AddV2[T=float](s/exit, t/exit)
    b = Mul[T=float](a, s/exit)
    c = Sub[T=float](b, t/exit)
    end = Tanh[T=float](c)
    end -> float
";

#[test]
fn kernels_in_and_after_a_loop_are_captured() -> Fallible {
    let text = CELL.replace("FRAME", "frame_name=\"loop\", parallel_iterations=10");
    let run = |graphs: bool| -> Fallible<(Vec<usize>, Vec<Tensor>)> {
        let options = GpuOptions { memory_fraction: 1.0, graphs, tf32: false, ..GpuOptions::default() };
        let gpu = Gpu::with_driver(RecordingDriver::new(1 << 20).executing_ptx(), 0, &options)?;
        let partition = Partition::of_text(&text, &gpu.device)?;
        let (mut launched, mut given) = (Vec::new(), Vec::new());
        for step in 0..5u8 {
            let of = |dims: &[usize], by: f32| -> Fallible<Tensor> {
                let count: usize = dims.iter().product();
                let values: Vec<f32> = (0..count).map(|i| by * (i as f32 - 3.0 + f32::from(step))).collect();
                Ok(Tensor::from_slice(&values, graph::Shape::new(dims)?)?)
            };
            let feeds = [("x", of(&[3, 2, 2], 0.1)?), ("first", of(&[2, 2], 0.2)?), ("w", of(&[2, 2], 0.3)?)];
            given.extend(partition.step(&feeds, &["end"])?);
            let log = gpu.driver.log();
            launched.push(log.iter().filter(|line| line.starts_with("graph of")).count());
        }
        assert_eq!(gpu.driver.races(), Vec::<String>::new());
        Ok((launched, given))
    };
    let ((launched, with), (_, without)) = (run(true)?, run(false)?);
    assert_ne!(without[3], without[4]);
    // The last iteration of the first step is captured. Each later iteration gets the output of the previous
    // launch as input, so outputs are copied out of the graph's memory.
    assert_eq!((&launched[3..], with), (&[4, 4][..], without));
    Ok(())
}
