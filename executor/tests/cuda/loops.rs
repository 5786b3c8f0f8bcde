//! Loops on a GPU that records: arrays and stacks hold elements in its memory, and what counts turns never leaves the
//! host.

use super::Fallible;
use super::streams::Gpu;
use super::training::run;
use graph::Graph;

/// A recurrence over the rows of a matrix: each turn reads a row, adds it to the state, and writes the state.
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
fn a_loop_over_arrays_copies_nothing_between_its_turns() -> Fallible {
    let log = checked(&recurrence(STEP)?, &[("moved<u32>", 3), ("zip<AddV2, float, float>", 3)])?;
    // The two constants come over when they are made; nothing goes back.
    assert_eq!(log.iter().filter(|line| line.starts_with("copy in")).count(), 2, "{log:#?}");
    assert_eq!(log.iter().filter(|line| line.starts_with("copy out")).count(), 0, "{log:#?}");
    Ok(())
}

#[test]
fn gradients_of_one_element_are_summed_where_they_are() -> Fallible {
    let graph = recurrence(
        "back = TensorArrayGradV3[source=\"gradients\"](rows/in, filled/in)
        where = Const[dtype=int32, value=int32<>{0}](^i/at)
        s/then = TensorArrayReadV3[dtype=float](rows/in, i/at, filled/in)
        sent = TensorArrayWriteV3[T=float](back, where, s/then, back:1)
        flow/then = Identity[T=float](flow/switch:1, ^sent)",
    )?;
    // The first is the element, which the array of rows holds too, so that the sum begins with a copy.
    checked(&graph, &[("update<Add, float>", 2)])?;
    Ok(())
}

#[test]
fn what_is_pushed_is_popped_without_a_copy() -> Fallible {
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
