//! Tests of branches and loops, with graphs in textual form and the CPU's kernels.

use super::*;
use crate::action::Action;
use device::Error;
use device::cancel::Cancellation;
use device::rendezvous::{LocalRendezvous, RendezvousKey, Sent};
use device::value::Value;
use graph::{Code, Tensor};
use std::fmt::Write;
use std::sync::mpsc;
use std::time::Duration;

const PLACE: &str = "/job:localhost/replica:0/task:0/device:CPU:0";

/// The text of a partition under construction. Fetched outputs are sent under the name of their node.
#[derive(Default)]
struct Text(String);

impl Text {
    fn of(lines: &str) -> Text {
        Text(lines.trim().to_owned() + "\n")
    }

    fn int(mut self, name: &str, value: i32) -> Text {
        let _ = writeln!(self.0, "{name} = Const[dtype=int32, value=int32<>{{{value}}}]");
        self
    }

    fn recv(mut self, name: &str, dtype: &str) -> Text {
        let key = key_attrs(name);
        let _ = writeln!(self.0, "{name} = _Recv[tensor_type={dtype}, {key}]");
        self
    }

    fn fetch(mut self, output: &str, dtype: &str) -> Text {
        let name = output.replace(':', "_");
        let key = key_attrs(&name);
        let _ = writeln!(self.0, "send_{name} = _Send[T={dtype}, {key}]({output})");
        self
    }

    /// Adds a loop `name` that counts from `from` up to `limit`. `body` has the nodes that compute the next count,
    /// `name/then`, from the current count, `name/at`, and the constant 1, `name/one`.
    fn counting(mut self, name: &str, parallel: i32, from: &str, limit: &str, body: &str) -> Text {
        let attrs = format!("T=int32, frame_name=\"{name}\", parallel_iterations={parallel}");
        let _ = write!(
            self.0,
            "{name}/enter = Enter[{attrs}]({from})
             {name}/limit = Enter[{attrs}, is_constant=true]({limit})
             {name}/merge = Merge[T=int32, N=2]({name}/enter, {name}/next)
             {name}/less = Less[T=int32]({name}/merge, {name}/limit)
             {name}/more = LoopCond({name}/less)
             {name}/switch = Switch[T=int32]({name}/merge, {name}/more)
             {name}/exit = Exit[T=int32]({name}/switch)
             {name}/at = Identity[T=int32]({name}/switch:1)
             {name}/one = Const[dtype=int32, value=int32<>{{1}}](^{name}/at)
             {body}
             {name}/next = NextIteration[T=int32]({name}/then)
            "
        );
        self
    }

    fn executor_on(&self, threads: usize) -> Result<Arc<Executor>> {
        let lines: String = self.0.lines().map(|line| line.trim().to_owned() + "\n").collect();
        let graph = Graph::from_text(&lines)?;
        let device: Arc<Device> = Arc::new(kernels::lone_device());
        Ok(Arc::new(Executor::new(&graph, device, Pool::new(threads)?, &KernelCache::new())?))
    }

    fn executor(&self) -> Result<Arc<Executor>> {
        self.executor_on(2)
    }
}

fn key_attrs(name: &str) -> String {
    format!(
        "tensor_name=\"{name}\", send_device=\"{PLACE}\", recv_device=\"{PLACE}\", send_device_incarnation=0"
    )
}

const ADD_ONE: &str = "loop/then = AddV2[T=int32](loop/at, loop/one)";

fn new_step() -> Arc<Step> {
    Arc::new(Step::new(1, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new())))
}

fn start(executor: &Arc<Executor>, step: &Arc<Step>) -> mpsc::Receiver<Result<Trace>> {
    let (sender, receiver) = mpsc::channel();
    executor.run(step.clone(), false, Box::new(move |result| drop(sender.send(result))));
    receiver
}

fn wait<T>(receiver: &mpsc::Receiver<Result<T>>) -> Result<T> {
    receiver.recv_timeout(Duration::from_secs(120)).map_err(|e| Error::internal(e.to_string()))?
}

fn key(edge: &str) -> Arc<RendezvousKey> {
    Arc::new(RendezvousKey::new(PLACE, 0, PLACE, edge))
}

/// Returns the tensor that was sent under a name; `None` if it is dead.
fn sent(step: &Arc<Step>, edge: &str) -> Result<Option<Tensor>> {
    let (sender, receiver) = mpsc::channel();
    step.rendezvous.recv(&key(edge), Box::new(move |sent| drop(sender.send(sent))));
    let sent = wait(&receiver)?;
    match sent.value {
        Value::Host(tensor) if !sent.is_dead => Ok(Some(tensor)),
        Value::None if sent.is_dead => Ok(None),
        other => Err(Error::internal(format!("{other:?}"))),
    }
}

/// Runs a step and returns the tensors that it sent under these names.
fn run(executor: &Arc<Executor>, feeds: &[(&str, Tensor)], names: &[&str]) -> Result<Vec<Option<Tensor>>> {
    let step = new_step();
    for (name, value) in feeds {
        step.rendezvous.send(&key(name), Sent { value: Value::Host(value.clone()), is_dead: false })?;
    }
    wait(&start(executor, &step))?;
    names.iter().map(|name| sent(&step, name)).collect()
}

fn ints(values: &[Option<i32>]) -> Vec<Option<Tensor>> {
    values.iter().map(|v| v.map(Tensor::from)).collect()
}

#[test]
fn a_switch_runs_one_branch_and_consumers_of_the_other_are_dead() -> Result<()> {
    let executor = Text::of(
        "
        switch = Switch[T=int32](x, pred)
        no = Neg[T=int32](switch)
        yes = AddV2[T=int32](switch:1, switch:1)
        both = AddV2[T=int32](no, yes)
        merge = Merge[T=int32, N=2](no, yes)
        after_no = Const[dtype=int32, value=int32<>{7}](^no)
        after_switch = Const[dtype=int32, value=int32<>{8}](^switch)
        trigger = ControlTrigger(^no, ^yes)
        after_trigger = Const[dtype=int32, value=int32<>{9}](^trigger)
        ",
    )
    .recv("x", "int32")
    .recv("pred", "bool")
    .fetch("merge", "int32")
    .fetch("merge:1", "int32")
    .fetch("yes", "int32")
    .fetch("both", "int32")
    .fetch("after_no", "int32")
    .fetch("after_switch", "int32")
    .fetch("after_trigger", "int32")
    .executor()?;
    let names = ["merge", "merge_1", "yes", "both", "after_no", "after_switch", "after_trigger"];
    for _ in 0..20 {
        let yes = run(&executor, &[("x", 5.into()), ("pred", true.into())], &names)?;
        assert_eq!(yes, ints(&[Some(10), Some(1), Some(10), None, None, Some(8), Some(9)]));
        let no = run(&executor, &[("x", 5.into()), ("pred", false.into())], &names)?;
        assert_eq!(no, ints(&[Some(-5), Some(0), None, None, Some(7), Some(8), Some(9)]));
    }
    Ok(())
}

#[test]
fn a_constant_that_is_alive_with_its_readers_does_not_run() -> Result<()> {
    let text = Text::of(
        "
        switch = Switch[T=int32](x, pred)
        yes = Identity[T=int32](switch:1)
        with_yes = Const[dtype=int32, value=int32<>{7}](^yes)
        sum = AddV2[T=int32](yes, with_yes)
        alone = Neg[T=int32](with_also)
        with_also = Const[dtype=int32, value=int32<>{8}](^yes)
        with_switch = Const[dtype=int32, value=int32<>{9}](^switch)
        other = AddV2[T=int32](switch, with_switch)
        one_of_two = Const[dtype=int32, value=int32<>{1}](^yes)
        two_of_two = Const[dtype=int32, value=int32<>{2}](^yes)
        three = AddV2[T=int32](one_of_two, two_of_two)
        variable = VariableV2[dtype=int32, shape=<>]
        set = Assign[T=int32](variable, x)
        read = Identity[T=int32](set)
        after_read = Const[dtype=int32, value=int32<>{4}](^read)
        written = AssignAdd[T=int32](set, after_read)
        ",
    );
    let executor = text
        .recv("x", "int32")
        .recv("pred", "bool")
        .fetch("sum", "int32")
        .fetch("alone", "int32")
        .fetch("other", "int32")
        .fetch("three", "int32")
        .fetch("read", "int32")
        .executor()?;
    let of_name = |name: &str| executor.plan.nodes.iter().find(|n| &*n.node.name == name);
    let is_constant = |name: &str| of_name(name).map(|n| matches!(n.action, Action::Constant));
    assert_eq!(
        ["with_yes", "with_also", "with_switch"].map(is_constant),
        [Some(true), Some(false), Some(true)]
    );
    // If `one_of_two` and `two_of_two` were both replaced by their values, `three` would be alive even if `yes` is
    // dead. If `after_read` were replaced by its value, `written` would not wait for `read`.
    assert_eq!(["one_of_two", "two_of_two", "after_read"].map(is_constant), [Some(false); 3]);
    let names = ["sum", "alone", "other", "three", "read"];
    let yes = run(&executor, &[("x", 5.into()), ("pred", true.into())], &names)?;
    assert_eq!(yes, ints(&[Some(12), Some(-8), None, Some(3), Some(5)]));
    let no = run(&executor, &[("x", 5.into()), ("pred", false.into())], &names)?;
    assert_eq!(no, ints(&[None, None, Some(14), None, Some(5)]));
    Ok(())
}

/// Loops over several values, in the forms in which clients write loops and functions are lowered to loops.
#[test]
fn constants_of_a_loop_body_are_alive_with_their_readers() -> Result<()> {
    let attrs = "T=int32, frame_name=\"l\", parallel_iterations=10";
    let executor = Text::of(&format!(
        "
        zero = Const[dtype=int32, value=int32<>{{0}}]
        enter = Enter[{attrs}](zero)
        other_enter = Enter[{attrs}](zero)
        merge = Merge[T=int32, N=2](enter, next)
        other_merge = Merge[T=int32, N=2](other_enter, other_next)
        limit = Const[dtype=int32, value=int32<>{{9}}](^merge)
        less = Less[T=int32](merge, limit)
        more = LoopCond(less, ^other_merge)
        switch = Switch[T=int32](merge, more)
        other_switch = Switch[T=int32](other_merge, more)
        pivot = Identity[T=int32](switch:1)
        timed = NoOp(^pivot)
        one = Const[dtype=int32, value=int32<>{{1}}](^timed)
        two = Const[dtype=int32, value=int32<>{{2}}](^timed)
        last = Const[dtype=int32, value=int32<>{{3}}](^timed)
        then = AddV2[T=int32](switch:1, one)
        other_then = AddV2[T=int32](other_switch:1, two)
        seen = AddV2[T=int32](other_switch, last)
        next = NextIteration[T=int32](then)
        other_next = NextIteration[T=int32](other_then)
        exit = Exit[T=int32](other_switch)
        "
    ))
    .fetch("exit", "int32")
    .executor()?;
    let of_name = |name: &str| executor.plan.nodes.iter().find(|n| &*n.node.name == name);
    let is_constant = |name: &str| of_name(name).map(|n| matches!(n.action, Action::Constant));
    assert_eq!(["limit", "one", "two"].map(is_constant), [Some(true); 3]);
    // `last` must not be replaced by its value: in the last iteration, `last` is dead, but the other input of `seen` is
    // alive.
    assert_eq!(is_constant("last"), Some(false));
    for _ in 0..10 {
        assert_eq!(run(&executor, &[], &["exit"])?, ints(&[Some(18)]));
    }
    Ok(())
}

#[test]
fn a_merge_waits_for_its_control_inputs_and_takes_the_first_value() -> Result<()> {
    let executor = Text::of(
        "
        switch = Switch[T=int32](x, pred)
        never = Merge[T=int32, N=1](switch)
        one = Const[dtype=int32, value=int32<>{1}]
        always = Merge[T=int32, N=3](switch, one, switch:1)
        last = Merge[T=int32, N=2](switch:1, switch:1, ^never, ^always)
        ",
    )
    .recv("x", "int32")
    .recv("pred", "bool")
    .fetch("never", "int32")
    .fetch("last", "int32")
    .fetch("always", "int32")
    .executor()?;
    let yes = run(&executor, &[("x", 5.into()), ("pred", true.into())], &["never", "last"])?;
    assert_eq!(yes, ints(&[None, Some(5)]));
    let no = run(&executor, &[("x", 5.into()), ("pred", false.into())], &["never", "last"])?;
    assert_eq!(no, ints(&[Some(5), None]));
    Ok(())
}

#[test]
fn a_switch_with_many_outputs_uses_the_last_for_indices_out_of_range() -> Result<()> {
    let executor = Text::of("n = _SwitchN[T=int32, num_outs=3](x, which)")
        .recv("x", "int32")
        .recv("which", "int32")
        .fetch("n", "int32")
        .fetch("n:1", "int32")
        .fetch("n:2", "int32")
        .executor()?;
    for (which, way) in [(0, 0), (1, 1), (2, 2), (3, 2), (-1, 2)] {
        let values = run(&executor, &[("x", 5.into()), ("which", which.into())], &["n", "n_1", "n_2"])?;
        let expected: Vec<Option<i32>> = (0..3).map(|i| (i == way).then_some(5)).collect();
        assert_eq!(values, ints(&expected), "{which}");
    }
    let error = run(&executor, &[("x", 5.into()), ("which", Tensor::try_from([1, 2])?)], &["n"]).err();
    let text = "The second input must be a scalar, but it has shape [2]\n\t [[{{node n}}]]";
    assert_eq!(error.map(|e| e.to_string()).as_deref(), Some(text));
    Ok(())
}

#[test]
fn a_loop_counts_with_any_number_of_parallel_iterations() -> Result<()> {
    for parallel in [1, 2, 10, 100] {
        for threads in [1, 3] {
            let text = Text::default().int("zero", 0).recv("limit", "int32");
            let text = text.counting("loop", parallel, "zero", "limit", ADD_ONE).fetch("loop/exit", "int32");
            let executor = text.executor_on(threads)?;
            for limit in [0, 1, 2, 1000] {
                let exit = run(&executor, &[("limit", limit.into())], &["loop/exit"])?;
                assert_eq!(exit, ints(&[Some(limit)]));
            }
        }
    }
    Ok(())
}

#[test]
fn a_million_iterations_take_the_memory_of_a_few() -> Result<()> {
    let text = Text::default().int("zero", 0).recv("limit", "int32");
    let text = text.counting("loop", 10, "zero", "limit", ADD_ONE).fetch("loop/exit", "int32");
    let executor = text.executor()?;
    assert_eq!(run(&executor, &[("limit", 1_000_000.into())], &["loop/exit"])?, ints(&[Some(1_000_000)]));
    let idle = executor.plan.frames.frames[1].idle.lock().len();
    assert!((1..=11).contains(&idle), "{idle} iteration states were created");
    Ok(())
}

/// Returns a partition that computes `rows * columns` by counting: in each of `rows` iterations, an inner loop adds 1
/// to the sum `columns` times.
fn nested(parallel: i32) -> Text {
    let body = "
        sum/enter_limit = AddV2[T=int32](loop/sum, columns/in)
        loop/then = AddV2[T=int32](loop/at, loop/one)
        ";
    let inner = "inner/then = AddV2[T=int32](inner/at, inner/one)";
    Text::default()
        .int("zero", 0)
        .recv("rows", "int32")
        .recv("columns", "int32")
        .counting("loop", parallel, "zero", "rows", body)
        .counting("inner", parallel, "loop/sum", "sum/enter_limit", inner)
        .with_lines(&format!(
            "columns/in = Enter[T=int32, frame_name=\"loop\", is_constant=true, parallel_iterations={parallel}](columns)
             sum/enter = Enter[T=int32, frame_name=\"loop\", parallel_iterations={parallel}](zero)
             sum/merge = Merge[T=int32, N=2](sum/enter, sum/next)
             sum/switch = Switch[T=int32](sum/merge, loop/more)
             loop/sum = Identity[T=int32](sum/switch:1)
             sum/next = NextIteration[T=int32](inner/exit)
             sum/exit = Exit[T=int32](sum/switch)"
        ))
        .fetch("sum/exit", "int32")
}

impl Text {
    fn with_lines(mut self, lines: &str) -> Text {
        self.0.push_str(lines);
        self.0.push('\n');
        self
    }
}

#[test]
fn loops_nest() -> Result<()> {
    for parallel in [1, 10] {
        for threads in [1, 3] {
            let executor = nested(parallel).executor_on(threads)?;
            for (rows, columns) in [(0, 3), (3, 0), (7, 9), (50, 20)] {
                let sum =
                    run(&executor, &[("rows", rows.into()), ("columns", columns.into())], &["sum/exit"])?;
                assert_eq!(sum, ints(&[Some(rows * columns)]));
            }
        }
    }
    Ok(())
}

#[test]
fn threads_share_the_iterations_of_nested_loops() -> Result<()> {
    let executor = nested(10).executor_on(4)?;
    for round in 0..60 {
        for (i, cost) in executor.costs.iter().enumerate() {
            let known = [1, 10_000, u32::MAX, [1, 10_000, u32::MAX][i % 3]];
            cost.store(known[round % 4], Ordering::Relaxed);
        }
        let steps: Vec<_> = (0..3).map(|_| new_step()).collect();
        let running: Vec<_> = steps.iter().map(|step| start(&executor, step)).collect();
        for step in &steps {
            for (name, value) in [("rows", 7), ("columns", 11)] {
                let value = Value::Host(value.into());
                step.rendezvous.send(&key(name), Sent { value, is_dead: false })?;
            }
        }
        for (step, done) in steps.iter().zip(&running) {
            wait(done)?;
            assert_eq!(sent(step, "sum/exit")?, Some(77.into()));
        }
    }
    Ok(())
}

#[test]
fn a_loop_in_the_branch_not_taken_is_dead_and_ends() -> Result<()> {
    let text = Text::of(
        "
        way = Switch[T=int32](zero, pred)
        limits = Switch[T=int32](limit, pred)
        result = Merge[T=int32, N=2](way, loop/exit)
        ",
    )
    .int("zero", 0)
    .int("limit", 5)
    .recv("pred", "bool")
    .counting("loop", 10, "way:1", "limits:1", ADD_ONE)
    .fetch("loop/exit", "int32")
    .fetch("result", "int32");
    let executor = text.executor()?;
    for _ in 0..20 {
        let names = ["loop/exit", "result"];
        assert_eq!(run(&executor, &[("pred", true.into())], &names)?, ints(&[Some(5), Some(5)]));
        assert_eq!(run(&executor, &[("pred", false.into())], &names)?, ints(&[None, Some(0)]));
    }
    Ok(())
}

#[test]
fn a_switch_in_a_loop_may_select_another_branch_in_each_iteration() -> Result<()> {
    // Odd numbers are increased by one, even numbers by two.
    let body = "
        loop/divisor = Const[dtype=int32, value=int32<>{2}](^loop/at)
        loop/odd = FloorMod[T=int32](loop/at, loop/divisor)
        loop/is_odd = Cast[SrcT=int32, DstT=bool](loop/odd)
        loop/way = Switch[T=int32](loop/at, loop/is_odd)
        loop/two = AddV2[T=int32](loop/one, loop/one)
        loop/by_two = AddV2[T=int32](loop/way, loop/two)
        loop/by_one = AddV2[T=int32](loop/way:1, loop/one)
        loop/then = Merge[T=int32, N=2](loop/by_two, loop/by_one)
        ";
    let text = Text::default().recv("from", "int32").int("limit", 20);
    let executor = text.counting("loop", 10, "from", "limit", body).fetch("loop/exit", "int32").executor()?;
    for (from, end) in [(0, 20), (1, 20), (19, 20), (20, 20), (33, 33)] {
        assert_eq!(run(&executor, &[("from", from.into())], &["loop/exit"])?, ints(&[Some(end)]));
    }
    Ok(())
}

#[test]
fn an_error_in_an_iteration_names_its_node_and_the_next_step_succeeds() -> Result<()> {
    let body = "
        loop/then = AddV2[T=int32](loop/at, loop/one)
        loop/left = Sub[T=int32](loop/limit, loop/then)
        loop/share = FloorDiv[T=int32](loop/one, loop/left)
        ";
    let text = Text::default().int("zero", 0).recv("limit", "int32");
    let text = text.counting("loop", 10, "zero", "limit", body).fetch("loop/exit", "int32");
    let executor = text.executor()?;
    for _ in 0..5 {
        let error = run(&executor, &[("limit", 100.into())], &["loop/exit"]).err().map(|e| e.to_string());
        let error = error.unwrap_or_default();
        assert!(error.contains("division by zero") && error.contains("{{node loop/share}}"), "{error}");
        assert_eq!(run(&executor, &[("limit", 0.into())], &["loop/exit"])?, ints(&[Some(0)]));
    }
    Ok(())
}

#[test]
fn an_endless_loop_can_be_cancelled_and_yields_to_other_steps() -> Result<()> {
    let endless = "loop/then = Mul[T=int32](loop/at, loop/one)";
    for threads in [1, 2] {
        let text = Text::default().int("zero", 0).recv("limit", "int32");
        let text = text.counting("loop", 10, "zero", "limit", endless).fetch("loop/exit", "int32");
        let executor = text.executor_on(threads)?;
        let steps: Vec<_> = (0..3).map(|_| new_step()).collect();
        let running: Vec<_> = steps.iter().map(|step| start(&executor, step)).collect();
        for step in &steps {
            step.rendezvous.send(&key("limit"), Sent { value: Value::Host(9.into()), is_dead: false })?;
        }
        for _ in 0..3 {
            assert_eq!(run(&executor, &[("limit", 0.into())], &["loop/exit"])?, ints(&[Some(0)]));
        }
        for (step, done) in steps.iter().zip(&running) {
            assert!(done.try_recv().is_err(), "the loop has ended");
            step.cancellation.cancel(Error::new(Code::DeadlineExceeded, "too late"));
            let error = wait(done).err().ok_or_else(|| Error::internal("no failure"))?;
            assert_eq!((error.code(), error.is_derived()), (Code::DeadlineExceeded, true));
        }
        assert_eq!(run(&executor, &[("limit", 0.into())], &["loop/exit"])?, ints(&[Some(0)]));
    }
    Ok(())
}

#[test]
fn sends_in_a_loop_have_keys_of_their_iteration() -> Result<()> {
    let key = key_attrs("x");
    let body = format!(
        "
        loop/send = _Send[T=int32, {key}](loop/at)
        loop/recv = _Recv[tensor_type=int32, {key}](^loop/merge)
        loop/then = AddV2[T=int32](loop/recv, loop/one)
        "
    );
    let text = Text::default().int("zero", 0).int("limit", 30);
    let text = text.counting("loop", 10, "zero", "limit", &body).fetch("loop/exit", "int32");
    let executor = text.executor()?;
    assert_eq!(run(&executor, &[], &["loop/exit"])?, ints(&[Some(30)]));
    Ok(())
}

#[test]
fn a_received_dead_tensor_makes_only_its_consumers_dead() -> Result<()> {
    let executor = Text::of(
        "
        y = AddV2[T=int32](x, z)
        after = Const[dtype=int32, value=int32<>{3}](^y)
        trigger = ControlTrigger(^after)
        go = Const[dtype=int32, value=int32<>{4}](^trigger)
        other = Neg[T=int32](z)
        ",
    )
    .recv("x", "int32")
    .recv("z", "int32")
    .fetch("y", "int32")
    .fetch("after", "int32")
    .fetch("go", "int32")
    .fetch("other", "int32")
    .executor()?;
    assert!(executor.plan.frames.is_empty(), "this partition itself has no control flow");
    let names = ["y", "after", "go", "other"];
    for _ in 0..3 {
        let step = new_step();
        let done = start(&executor, &step);
        step.rendezvous.send(&key("x"), Sent::dead())?;
        step.rendezvous.send(&key("z"), Sent { value: Value::Host(2.into()), is_dead: false })?;
        wait(&done)?;
        let values: Vec<_> = names.iter().map(|name| sent(&step, name)).collect::<Result<_>>()?;
        assert_eq!(values, ints(&[None, None, Some(4), Some(-2)]));
        let alive = run(&executor, &[("x", 1.into()), ("z", 2.into())], &names)?;
        assert_eq!(alive, ints(&[Some(3), Some(3), Some(4), Some(-2)]));
    }
    Ok(())
}

#[test]
fn invalid_loops_are_refused_at_registration() -> Result<()> {
    let refusal = |text: &str| -> Result<String> {
        Ok(Text::of(text).int("zero", 0).executor().err().map(|e| e.to_string()).unwrap_or_default())
    };
    let enter = "e = Enter[T=int32, frame_name=\"f\"](zero)";
    assert_eq!(
        refusal(&format!("{enter}\nsum = AddV2[T=int32](e, zero)"))?,
        "{{node sum}} has inputs from different frames. The input {{node e}} is in frame 'f'. The input {{node \
         zero}} is in frame ''."
    );
    assert_eq!(refusal("x = Exit[T=int32](zero)")?, "{{node x}} (Exit) is in no loop");
    let none = "e = Enter[T=int32, frame_name=\"f\", parallel_iterations=0](zero)";
    assert_eq!(refusal(none)?, "e: parallel_iterations is 0, not > 0");
    Ok(())
}

#[test]
fn thousands_of_nested_frames_do_not_overflow_the_stack() -> Result<()> {
    let mut text = Text::default().recv("x", "int32");
    let mut last = "x".to_owned();
    for i in 0..20_000 {
        let _ = writeln!(text.0, "e{i} = Enter[T=int32, frame_name=\"f\"]({last})");
        last = format!("e{i}");
    }
    for i in 0..20_000 {
        let _ = writeln!(text.0, "x{i} = Exit[T=int32]({last})");
        last = format!("x{i}");
    }
    let executor = text.fetch(&last, "int32").executor()?;
    assert_eq!(run(&executor, &[("x", 3.into())], &[&last])?, ints(&[Some(3)]));
    let step = new_step();
    let done = start(&executor, &step);
    step.cancellation.cancel(Error::new(Code::Cancelled, "enough"));
    assert!(wait(&done).is_err());
    Ok(())
}
