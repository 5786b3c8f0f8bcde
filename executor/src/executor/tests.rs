//! Tests of the executor with private ops on private devices, which log their actions.

mod bench;

use self::bench::*;
use super::*;
use device::Error;
use device::value::Value;
use graph::ops::Traits;
use graph::{Code, DType, Node, Op, Role};
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[test]
fn values_flow_from_recv_through_kernels_to_send_step_after_step() -> Result<()> {
    let mut b = Bench::new();
    let x = b.add("x", recv(), &[], &[])?;
    let one = b.add_with("one", op("Const", 0, 1, Role::Compute, Traits::NONE), 1, &[], &[])?;
    let y = b.add("y", compute("Add", 2, 1), &[x, one], &[])?;
    let z = b.add("z", compute("Add", 2, 1), &[y, y], &[])?;
    b.add("fetch", send(), &[z], &[])?;
    b.add("also", send(), &[x], &[])?;
    let executor = b.executor()?;
    for i in 0..40 {
        let step = new_step();
        if i % 2 == 0 {
            feed(&step, "x", i as f32)?;
        }
        let done = start(&executor, &step, false);
        if i % 2 == 1 {
            feed(&step, "x", i as f32)?;
        }
        wait(&done)?;
        assert_eq!(fetch(&step, "fetch")?, 2.0 * (i as f32 + 1.0));
        assert_eq!(fetch(&step, "also")?, i as f32);
    }
    assert_eq!(b.events()?, ["const"], "a constant is computed once, at registration");
    assert!(executor.states.lock().len() <= 2, "states are reused");
    Ok(())
}

#[test]
fn a_value_is_delivered_to_many_consumers() -> Result<()> {
    let mut b = Bench::new();
    let (x, y) = (b.add("x", recv(), &[], &[])?, b.add("y", recv(), &[], &[])?);
    let mut sum = y;
    for i in 0..100 {
        sum = b.add(&format!("sum{i}"), compute("Add", 2, 1), &[sum, x], &[])?;
    }
    b.add("fetch", send(), &[sum], &[])?;
    let executor = b.executor()?;
    for late in [None, Some("x"), Some("y")] {
        let step = new_step();
        let values = [("x", 2.0), ("y", 1.0)];
        for (name, value) in values.iter().filter(|(name, _)| Some(*name) != late) {
            feed(&step, name, *value)?;
        }
        let done = start(&executor, &step, false);
        for (name, value) in values.iter().filter(|(name, _)| Some(*name) == late) {
            feed(&step, name, *value)?;
        }
        wait(&done)?;
        assert_eq!(fetch(&step, "fetch")?, 201.0);
    }
    Ok(())
}

#[test]
fn short_work_after_a_receive_runs_as_an_inline_task() -> Result<()> {
    let mut b = Bench::new();
    let x = b.add("x", recv(), &[], &[])?;
    let y = b.add("y", compute("Add", 2, 1), &[x, x], &[])?;
    b.add("fetch", send(), &[y], &[])?;
    let executor = b.executor()?;
    // Returns whether a step ends on the thread that sends the step its input value.
    let ends_here = |executor: &Arc<Executor>| -> Result<bool> {
        let (step, (sender, receiver)) = (new_step(), mpsc::channel());
        let ended = move |result: Result<Trace>| {
            drop(sender.send(result.map(|_| std::thread::current().id())));
        };
        executor.run(step.clone(), false, Box::new(ended));
        feed(&step, "x", 1.0)?;
        let thread = wait(&receiver)?;
        assert_eq!(fetch(&step, "fetch")?, 2.0);
        Ok(thread == std::thread::current().id())
    };
    for _ in 0..40 {
        assert!(!ends_here(&executor)?, "on a thread without inline tasks");
    }
    let thread = std::thread::spawn(move || -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !Pool::with_inline_tasks(|| ends_here(&executor))? {
            assert!(Instant::now() < deadline, "no step ended as an inline task");
        }
        Ok(())
    });
    thread.join().unwrap_or_else(|_| Err(Error::internal("the thread panicked")))
}

#[test]
fn inline_task_runs_only_the_beginning_of_a_long_step() -> Result<()> {
    let mut b = Bench::new();
    let x = b.add("x", recv(), &[], &[])?;
    let begins = b.add("begins", compute("Thread", 1, 0), &[x], &[])?;
    let mut last = b.add("first", compute("Add", 2, 1), &[x, x], &[begins])?;
    for i in 0..5000 {
        last = b.add(&format!("n{i}"), compute("Add", 2, 1), &[last, x], &[])?;
    }
    b.add("ends", compute("Thread", 1, 0), &[last], &[])?;
    b.add("fetch", send(), &[last], &[])?;
    let executor = b.executor()?;
    let builder = std::thread::Builder::new().name("inline".into());
    let run = builder.spawn(move || -> Result<Vec<String>> {
        for _ in 0..2 * NUM_FIRST_MEASURED {
            let step = new_step();
            let done = start(&executor, &step, false);
            Pool::with_inline_tasks(|| feed(&step, "x", 1.0))?;
            wait(&done)?;
            assert_eq!(fetch(&step, "fetch")?, 5002.0);
        }
        b.events()
    });
    let run = run.map_err(|e| Error::internal(e.to_string()))?;
    let events = run.join().unwrap_or_else(|_| Err(Error::internal("the thread panicked")))?;
    assert_eq!(events.len() as u64, 2 * 2 * NUM_FIRST_MEASURED);
    // Later steps may begin on a pool thread, because on a busy machine any node may be measured as slow.
    assert_eq!(events[0], "inline");
    for step in events.chunks(2) {
        assert!(step[1].starts_with("compute"), "{step:?}");
    }
    Ok(())
}

#[test]
fn a_chain_of_a_million_nodes_registers_and_runs() -> Result<()> {
    let mut b = Bench::new();
    let add = compute("Add", 2, 1);
    let one = b.add_with("one", compute("Value", 0, 1), 1, &[], &[])?;
    let mut last = b.add_with("start", compute("Value", 0, 1), 0, &[], &[])?;
    for i in 0..1_000_000 {
        last = b.graph.add(Node::new(format!("n{i}"), add), &[last.into(), one.into()], &[])?;
    }
    b.add("fetch", send(), &[last], &[])?;
    let (executor, step) = (b.executor()?, new_step());
    run(&executor, &step)?;
    assert_eq!(fetch(&step, "fetch")?, 1e6);
    Ok(())
}

#[test]
fn the_last_reader_of_a_value_owns_it_uniquely() -> Result<()> {
    let mut b = Bench::new();
    let is_unique = compute("IsUnique", 1, 0);
    let x = b.add("x", compute("Row", 0, 1), &[], &[])?;
    let first = b.add("first", is_unique, &[x], &[])?;
    let second = b.add("second", is_unique, &[x], &[first])?;
    b.add("third", is_unique, &[x], &[second])?;
    run(&b.executor()?, &new_step())?;
    assert_eq!(b.events()?, ["first false", "second false", "third true"]);
    Ok(())
}

#[test]
fn a_failure_names_its_node_and_cancels_only_its_step() -> Result<()> {
    for (op, text, code) in [
        ("Fails", "it fails\n\t [[{{node bad}}]]", Code::InvalidArgument),
        ("Panics", "the kernel of Panics panicked: it panics\n\t [[{{node bad}}]]", Code::Internal),
        (
            "PanicsAtStart",
            "the kernel of PanicsAtStart panicked: it panics\n\t [[{{node bad}}]]",
            Code::Internal,
        ),
        ("GivesNothing", "Missing 0-th output from bad\n\t [[{{node bad}}]]", Code::Internal),
        ("Forgets", "the operation was dropped before it ended\n\t [[{{node bad}}]]", Code::Internal),
    ] {
        let mut b = Bench::new();
        let x = b.add("x", recv(), &[], &[])?;
        let bad = b.add("bad", compute(op, 1, 1), &[x], &[])?;
        b.add("after", compute("IsUnique", 1, 0), &[bad], &[])?;
        b.add("never", recv(), &[], &[])?;
        let executor = b.executor()?;
        for _ in 0..3 {
            let step = new_step();
            feed(&step, "x", 1.0)?;
            let error = run(&executor, &step).err().ok_or_else(|| Error::internal("no failure"))?;
            assert_eq!((error.to_string().as_str(), error.code()), (text, code));
            assert!(!error.is_derived());
            assert!(step.cancellation.is_cancelled());
            assert_eq!(fetch(&step, "other").map_err(|e| e.is_derived()), Err(true));
        }
        assert_eq!(b.events()?, <[String; 0]>::default());
    }
    Ok(())
}

#[test]
fn cancelling_a_step_ends_its_receives_and_reports_a_consequence() -> Result<()> {
    let mut b = Bench::new();
    b.add("never", recv(), &[], &[])?;
    let (executor, step) = (b.executor()?, new_step());
    let done = start(&executor, &step, false);
    step.cancellation.cancel(Error::new(Code::DeadlineExceeded, "too late"));
    let error = wait(&done).err().ok_or_else(|| Error::internal("no failure"))?;
    assert!(error.is_derived());
    assert_eq!(error.code(), Code::DeadlineExceeded);
    // A step that is cancelled before it starts runs no node.
    let error = run(&executor, &step).err().ok_or_else(|| Error::internal("no failure"))?;
    assert!(error.is_derived());
    Ok(())
}

#[test]
fn a_run_continues_on_the_pool_after_an_asynchronous_kernel() -> Result<()> {
    let mut b = Bench::new();
    let x = b.add("x", compute("Value", 0, 1), &[], &[])?;
    let later = b.add("later", compute("Later", 1, 1), &[x], &[])?;
    b.add("thread", compute("Thread", 1, 0), &[later], &[])?;
    let executor = b.executor()?;
    for _ in 0..10 {
        let done = start(&executor, &new_step(), false);
        let deadline = Instant::now() + Duration::from_secs(60);
        let answer = loop {
            if let Some(answer) = b.callbacks()?.pop() {
                break answer;
            }
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        };
        assert!(done.try_recv().is_err());
        std::thread::spawn(answer).join().map_err(|_| Error::internal("the callback panicked"))?;
        wait(&done)?;
        let events = b.events()?;
        assert!(events.len() == 1 && events[0].starts_with("compute-"), "{events:?}");
    }
    Ok(())
}

#[test]
fn stateful_kernels_are_shared_by_the_graphs_of_a_session_but_not_across_attributes() -> Result<()> {
    let mut b = Bench::new();
    let counter = compute("Counter", 0, 1);
    let count = |b: &mut Bench, value: i64| -> Result<f32> {
        b.graph = Graph::new();
        let x = b.add_with("x", counter, value, &[], &[])?;
        b.add("fetch", send(), &[x], &[])?;
        let step = new_step();
        run(&b.executor()?, &step)?;
        fetch(&step, "fetch")
    };
    assert_eq!(count(&mut b, 0)?, 0.0);
    assert_eq!(count(&mut b, 0)?, 1.0);
    assert_eq!(count(&mut b, 5)?, 0.0);
    assert_eq!(count(&mut b, 0)?, 2.0);
    b.kernels = KernelCache::new();
    assert_eq!(count(&mut b, 0)?, 0.0);
    Ok(())
}

#[test]
fn references_are_dereferenced_at_value_ports() -> Result<()> {
    let gives = compute("GivesRef", 0, 1);
    let initializes =
        op("TakesRef", 1, 0, Role::Compute, Traits { allows_uninitialized_input: true, ..Traits::STATEFUL });
    let mut b = Bench::new();
    let v = b.add_with("v", gives, 7, &[], &[])?;
    b.add("takes", compute("TakesRef", 1, 0), &[v], &[])?;
    b.add("fetch", send(), &[v], &[])?;
    let empty = b.add("empty", gives, &[], &[])?;
    b.add("init", initializes, &[empty], &[])?;
    let step = new_step();
    run(&b.executor()?, &step)?;
    assert_eq!(fetch(&step, "fetch")?, 7.0);

    for op in [compute("TakesRef", 1, 0), send()] {
        let mut b = Bench::new();
        let v = b.add("scope/v", gives, &[], &[])?;
        b.add("reads", op, &[v], &[])?;
        let error = run(&b.executor()?, &new_step()).err().ok_or_else(|| Error::internal("no failure"))?;
        assert_eq!(error.code(), Code::FailedPrecondition);
        let text = "Attempting to use uninitialized value scope/v\n\t [[{{node reads}}]]";
        assert_eq!(error.to_string(), text);
    }
    Ok(())
}

#[test]
fn a_fetch_of_a_variable_sends_a_reference() -> Result<()> {
    let mut b = Bench::new();
    let v = b.add_with("v", compute("GivesRef", 0, 1), 7, &[], &[])?;
    let fetch = Node::new("fetch", send())
        .with_attr("tensor_name", "fetch")
        .with_attr("send_device", PLACE)
        .with_attr("recv_device", PLACE)
        .with_attr("client_terminated", true);
    b.graph.add(fetch, &[v.into()], &[])?;
    let step = new_step();
    run(&b.executor()?, &step)?;
    let Value::Ref(variable) = received(&step, "fetch")? else {
        return Err(Error::internal("no reference"));
    };
    assert_eq!(variable.value()?.item::<f32>()?, 7.0);
    Ok(())
}

#[test]
fn values_move_between_memories_at_send_recv_and_host_ports() -> Result<()> {
    let mut b = Bench::on(true);
    let x = b.add("x", recv(), &[], &[])?;
    let host = b.add("host", compute("WantsHost", 1, 1), &[x], &[])?;
    let device = b.add("device", compute("WantsDevice", 1, 1), &[host], &[])?;
    b.add("fetch", send(), &[device], &[])?;
    let executor = b.executor()?;
    for i in 0..5 {
        let step = new_step();
        feed(&step, "x", i as f32)?;
        run(&executor, &step)?;
        assert_eq!(fetch(&step, "fetch")?, i as f32);
        assert_eq!(b.events()?, ["upload", "download", "host host", "upload", "device device", "download"]);
    }
    Ok(())
}

#[test]
fn a_host_tensor_is_sent_from_host_memory() -> Result<()> {
    let mut b = Bench::on(true);
    let x = b.add("x", recv(), &[], &[])?;
    let host = b.add("host", compute("WantsHost", 1, 1), &[x], &[])?;
    b.add("fetch", send(), &[host], &[])?;
    let (executor, step) = (b.executor()?, new_step());
    feed(&step, "x", 7.0)?;
    run(&executor, &step)?;
    assert_eq!(fetch(&step, "fetch")?, 7.0);
    assert_eq!(b.events()?, ["upload", "download", "host host"]);
    Ok(())
}

#[test]
fn a_trace_has_the_times_and_outputs_of_each_node() -> Result<()> {
    let mut b = Bench::new();
    let x = b.add("x", recv(), &[], &[])?;
    let one = b.add_with("one", op("Const", 0, 1, Role::Compute, Traits::NONE), 1, &[], &[])?;
    let first = b.add("first", compute("Value", 0, 1), &[], &[])?;
    let y = b.add("y", compute("Add", 2, 1), &[x, one], &[first])?;
    b.add("fetch", send(), &[y], &[])?;
    let (executor, step) = (b.executor()?, new_step());
    feed(&step, "x", 1.0)?;
    let trace = wait(&start(&executor, &step, true))?;
    let mut labels: Vec<&str> = trace.nodes.iter().map(|n| n.label.as_str()).collect();
    labels.sort_unstable();
    assert_eq!(
        labels,
        ["fetch = Send(y)", "first = Value()", "one = Const()", "x = Recv()", "y = Add(x, one, ^first)"]
    );
    for node in &trace.nodes {
        assert!(node.scheduled <= node.start && node.start <= node.end, "{node:?}");
        assert!(node.outputs.iter().all(|o| o.dtype == DType::Float && o.bytes == 4 && o.slot == 0));
        assert_eq!(node.outputs.len(), usize::from(&*node.node != "fetch"));
    }
    step.rendezvous.abort(Error::internal("the step is over"));
    feed(&step, "x", 1.0).err().ok_or_else(|| Error::internal("a send after the end"))?;
    Ok(())
}

#[test]
fn nodes_without_kernels_are_refused_at_registration() -> Result<()> {
    let refusal = |op: &'static Op| -> Result<Error> {
        let mut b = Bench::new();
        b.add("n", op, &[], &[])?;
        b.executor().err().ok_or_else(|| Error::internal("registered"))
    };
    let error = refusal(compute("Unheard", 0, 1))?;
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.to_string().contains("<no registered kernels>"), "{error}");
    Ok(())
}

#[test]
fn steps_run_side_by_side_and_expensive_nodes_spread_over_threads() -> Result<()> {
    let mut b = Bench::new();
    b.threads = 3;
    let one = b.add_with("one", compute("Value", 0, 1), 1, &[], &[])?;
    let mut layer = [one; 8];
    for depth in 0..20 {
        for i in 0..layer.len() {
            let other = layer[(i * 3 + depth) % layer.len()];
            layer[i] = b.add(&format!("n{depth}_{i}"), compute("Add", 2, 1), &[layer[i], other], &[])?;
        }
    }
    let mut sum = one;
    for (i, &id) in layer.iter().enumerate() {
        sum = b.add(&format!("sum{i}"), compute("Add", 2, 1), &[sum, id], &[])?;
    }
    b.add("fetch", send(), &[sum], &[])?;
    let executor = b.executor()?;
    let first = new_step();
    run(&executor, &first)?;
    let expected = fetch(&first, "fetch")?;
    for round in 0..60 {
        // Sets the measured costs of nodes, so that nodes run on one thread, are shared in groups, or are handed over
        // one by one.
        for (i, cost) in executor.costs.iter().enumerate() {
            let known = [1, 10_000, u32::MAX, [1, 10_000, u32::MAX][i % 3]];
            cost.store(known[round % 4], Ordering::Relaxed);
        }
        let steps: Vec<_> = (0..4).map(|_| new_step()).collect();
        let running: Vec<_> = steps.iter().map(|step| start(&executor, step, false)).collect();
        for (step, done) in steps.iter().zip(&running) {
            wait(done)?;
            assert_eq!(fetch(step, "fetch")?, expected);
        }
    }
    Ok(())
}
