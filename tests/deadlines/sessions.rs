//! The client's sessions: each check runs on a server in this process and on a cluster of processes.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use anabranch::client::{Error, Server, ServerConfig, Session, SessionOptions, TensorRef};
use anabranch::graph::{Code, DType, Graph, Output, Scope, Tensor};
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Longest time within which a call must fail if its failure does not wait for a deadline.
const SOON: Duration = Duration::from_secs(2);

/// A server or a cluster on which checks open sessions. It has two devices, `first` and `second`, of one task or
/// of two tasks.
trait TestRuntime {
    fn open(&self, graph: Graph) -> Result<Session, Error>;
    fn first(&self) -> &str;
    fn second(&self) -> &str;
}

struct InProcess {
    server: Arc<Server>,
}

impl TestRuntime for InProcess {
    fn open(&self, graph: Graph) -> Result<Session, Error> {
        Session::on_server(&self.server, graph, SessionOptions::default())
    }

    fn first(&self) -> &str {
        "/job:localhost/replica:0/task:0/device:CPU:0"
    }

    fn second(&self) -> &str {
        "/job:localhost/replica:0/task:0/device:CPU:1"
    }
}

struct Remote {
    cluster: Cluster,
}

impl TestRuntime for Remote {
    fn open(&self, graph: Graph) -> Result<Session, Error> {
        Session::connect(&self.cluster.target("worker", 0), graph, SessionOptions::default())
    }

    fn first(&self) -> &str {
        "/job:worker/replica:0/task:0/device:CPU:0"
    }

    fn second(&self) -> &str {
        "/job:worker/replica:0/task:1/device:CPU:0"
    }
}

/// Runs a check on a server in this process and on a cluster.
fn on_each_runtime(check: impl Fn(&dyn TestRuntime) -> Fallible) -> Fallible {
    let server = Server::new(ServerConfig { cpu_devices: 2, ..ServerConfig::default() })?;
    check(&InProcess { server: Arc::new(server) }).map_err(|e| format!("in this process: {e}"))?;
    let cluster = Cluster::start(&[("worker", 2)])?;
    check(&Remote { cluster }).map_err(|e| format!("on a cluster: {e}").into())
}

fn floats(tensor: &Tensor) -> Fallible<Vec<f32>> {
    Ok(tensor.values::<f32>()?.to_vec())
}

fn assert_fails<T: std::fmt::Debug>(result: Result<T, Error>, code: Code, parts: &[&str]) {
    match result {
        Ok(value) => panic!("{code:?} was expected, got {value:?}"),
        Err(error) => {
            assert_eq!(error.code(), code, "{error}");
            for part in parts {
                assert!(error.to_string().contains(part), "'{part}' is not in: {error}");
            }
        }
    }
}

/// Returns the output of a `_Recv` on `device` of a tensor that is never sent.
fn endless(scope: &Scope, device: &str) -> Output {
    let call = scope.op("_Recv").name("endless").device(device).attr("tensor_type", DType::Float);
    let call = call.attr("tensor_name", "never sent").attr("send_device_incarnation", 1i64);
    call.attr("send_device", device).attr("recv_device", device).output()
}

#[test]
fn steps_take_feeds_and_return_fetches_in_order() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let x = scope.placeholder("x", DType::Float, [3]);
        let y = scope.placeholder("y", DType::Float, [3]);
        let sum = scope.add(x, y);
        let product = scope.mul(x, y);
        let [top, at] = scope.top_k(sum, 1);
        let v = scope.variable("feeds/v", DType::Float, [3]);
        let set = scope.assign(v, product);
        let session = runtime.open(scope.finish()?)?;
        let (a, b) = (Tensor::vector(&[1f32, 2.0, 3.0])?, Tensor::vector(&[4f32, 5.0, -6.0])?);

        // Values are in the order of the fetches. A tensor may be fetched twice, and any output of a node may be
        // fetched.
        let feeds = [(x, a.clone()), (y, b.clone())];
        let got = session.run(&feeds, &[product, sum, at, product, top], &[])?;
        assert_eq!(floats(&got[0])?, [4.0, 10.0, -18.0]);
        assert_eq!(floats(&got[1])?, [5.0, 7.0, -3.0]);
        assert_eq!(got[2].values::<i32>()?, [1]);
        assert_eq!(got[3], got[0]);
        assert_eq!(floats(&got[4])?, [7.0]);

        // Tensors are named by text ("x" or "y:0") or by their output, and any tensor can be fed.
        let outcome = session.step().feed("x", a.clone()).feed("y:0", b.clone()).fetch(product).run()?;
        assert_eq!(outcome.values, [got[0].clone()]);
        let outcome = session.step().feed(sum, a.clone()).fetch(top).fetch(TensorRef::from(at)).run()?;
        assert_eq!(floats(&outcome.values[0])?, [3.0]);
        assert!(outcome.metadata.is_none());

        // Targets are run, and `run` returns no value for them.
        assert!(session.run(&feeds, &[], &[set.node])?.is_empty());
        assert_eq!(floats(&session.run(&[], &[v], &[])?[0])?, [4.0, 10.0, -18.0]);

        let multiply = session.callable(&[x, y], &[product], &[])?;
        for factor in [1f32, 2.0, 3.0] {
            let got = multiply.call(&[Tensor::vector(&[factor; 3])?, b.clone()])?;
            assert_eq!(floats(&got[0])?, [4.0 * factor, 5.0 * factor, -6.0 * factor]);
        }
        assert_fails(
            multiply.call(std::slice::from_ref(&a)),
            Code::InvalidArgument,
            &["Expected 2 feed tensors, but got 1"],
        );
        Ok(())
    })
}

#[test]
fn graph_is_extended_while_steps_run() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let v = scope.variable("grows/v", DType::Float, [0usize; 0]);
        let set = scope.assign(v, scope.constant(1f32));
        let session = runtime.open(scope.finish()?)?;
        session.run(&[], &[], &[set.node])?;
        let add = scope.assign_add(v, scope.constant(2f32));
        assert_fails(session.run(&[], &[add], &[]), Code::InvalidArgument, &["Session::extend"]);
        session.extend(scope.finish()?)?;
        assert_eq!(session.run(&[], &[add], &[])?[0].item::<f32>()?, 3.0);
        session.extend(scope.finish()?)?;

        // Steps run while nodes are added.
        let growing = &session;
        let reader = std::thread::scope(|threads| {
            let reader =
                threads.spawn(move || (0..50).try_for_each(|_| growing.run(&[], &[v], &[]).map(drop)));
            for i in 0..10 {
                let more = scope.mul(v, scope.constant(i as f32));
                let value = scope.finish().map_err(Error::from).and_then(|g| {
                    growing.extend(g)?;
                    growing.run(&[], &[more], &[])
                });
                let value = value.and_then(|v| Ok(v[0].item::<f32>()?));
                assert_eq!(value, Ok(3.0 * i as f32));
            }
            reader.join()
        });
        assert_eq!(reader.map_err(|_| "a reader panicked")?, Ok(()));
        Ok(())
    })
}

#[test]
fn errors_have_a_code_and_the_node() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let p = scope.placeholder("p", DType::Float, [2]);
        let q = scope.placeholder("q", DType::Int32, [None]);
        let n = scope.op("Neg").name("minus").input(p).output();
        let picked = scope.op("Reshape").name("reshaped").input(p).input(q).output();
        let v = scope.variable("failures/v", DType::Float, [0usize; 0]);
        let read = scope.op("Identity").name("read").input(v).output();
        let session = runtime.open(scope.finish()?)?;
        let value = || Tensor::vector(&[1f32, 2.0]);
        let good = || -> Fallible {
            assert_eq!(floats(&session.run(&[(p, value()?)], &[n], &[])?[0])?, [-1.0, -2.0]);
            Ok(())
        };
        good()?;
        let unfed = "You must feed a value for placeholder tensor 'p' with dtype float";
        assert_fails(session.run(&[], &[n], &[]), Code::InvalidArgument, &[unfed, "{{node p}}"]);
        let unset = "Attempting to use uninitialized value failures/v";
        assert_fails(session.run(&[], &[read], &[]), Code::FailedPrecondition, &[unset, "{{node "]);
        let wrong = [(p, value()?), (q, Tensor::vector(&[5i32])?)];
        assert_fails(session.run(&wrong, &[picked], &[]), Code::InvalidArgument, &["{{node reshaped}}"]);
        assert_fails(session.step().fetch("missing").run(), Code::NotFound, &["missing"]);
        assert_fails(session.step().target("missing").run(), Code::NotFound, &["missing"]);
        assert_fails(session.run(&[], &[], &[]), Code::InvalidArgument, &["at least one target"]);
        assert_fails(session.run(&[(p, value()?)], &[p], &[]), Code::InvalidArgument, &["p:0 is both fed"]);
        let ints = [(p, Tensor::vector(&[1i32, 2])?)];
        assert_fails(session.run(&ints, &[n], &[]), Code::InvalidArgument, &["p"]);
        good()
    })
}

#[test]
fn node_that_cannot_be_placed_fails_the_creation_of_the_session() -> Fallible {
    on_each_runtime(|runtime| {
        let on = |device: &str| -> Result<Graph, _> {
            let scope = Scope::new();
            scope.op("NoOp").name("misplaced").device(device).node();
            scope.finish()
        };
        for device in ["/job:missing", "/device:GPU:0", "/device:CPU:9", "/job:worker/task:9"] {
            assert_fails(runtime.open(on(device)?).map(drop), Code::InvalidArgument, &["misplaced", device]);
        }
        let session = runtime.open(on("/device:CPU:0")?)?;
        session.step().target("misplaced").run()?;
        Ok(())
    })
}

#[test]
fn step_fails_at_its_deadline() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let waits = [endless(&scope, runtime.first()), endless(&scope, runtime.second())];
        let one = scope.constant(1f32);
        let session = runtime.open(scope.finish()?)?;
        for wait in waits {
            let start = Instant::now();
            let late = session.step().fetch(wait).timeout(Duration::from_millis(100)).run();
            assert_fails(late, Code::DeadlineExceeded, &[]);
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            assert_eq!(session.run(&[], &[one], &[])?[0].item::<f32>()?, 1.0);
        }
        let options = anabranch::proto::pb::RunOptions { timeout_in_ms: 100, ..Default::default() };
        let late = session.step().fetch(waits[0]).options(options).run();
        assert_fails(late, Code::DeadlineExceeded, &[]);
        assert_eq!(session.run(&[], &[one], &[])?[0].item::<f32>()?, 1.0);
        Ok(())
    })
}

#[test]
fn values_are_sent_between_devices() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let (first, second) = (scope.device(runtime.first()), scope.device(runtime.second()));
        let x = first.placeholder("x", DType::Float, [None]);
        let doubled = second.mul(x, second.constant(2f32));
        let summed = first.add(doubled, x);
        let v = second.variable("cross/v", DType::Float, [0usize; 0]);
        let total = second.sum(summed, &[0], false);
        let set = second.assign(v, total);
        let text = first.op("Identity").input(second.constant("über")).output();
        let session = runtime.open(scope.finish()?)?;
        for len in [0usize, 1, 1000, 1_000_000] {
            let value = Tensor::full(1f32, anabranch::graph::Shape::new(&[len])?)?;
            let got = session.run(&[(x, value)], &[summed, total, text], &[set.node])?;
            assert_eq!(got[0].shape()[0], len);
            assert!(got[0].values::<f32>()?.iter().all(|&v| v == 3.0));
            assert_eq!(got[1].item::<f32>()?, 3.0 * len as f32);
            assert_eq!(&got[2].as_strings()?[0][..], "über".as_bytes());
            assert_eq!(session.run(&[], &[v], &[])?[0].item::<f32>()?, 3.0 * len as f32);
        }
        let devices = session.list_devices()?;
        let mut names: Vec<String> = devices.iter().map(|d| d.name.to_string()).collect();
        names.sort();
        assert_eq!(names, [runtime.first(), runtime.second()]);
        assert!(devices.iter().all(|d| d.incarnation != 0));
        Ok(())
    })
}

#[test]
fn variables_are_shared_by_name_and_outlive_sessions() -> Fallible {
    on_each_runtime(|runtime| {
        let graph = || {
            let scope = Scope::new();
            let v = scope.variable("shared/v", DType::Float, [0usize; 0]);
            let set = scope.assign(v, scope.constant(40f32));
            let add = scope.assign_add(v, scope.constant(1f32));
            scope.finish().map(|g| (g, v, set, add))
        };
        let (g, v, set, add) = graph()?;
        let first = runtime.open(g.clone())?;
        assert_fails(first.run(&[], &[v], &[]), Code::FailedPrecondition, &["shared/v"]);
        first.run(&[], &[], &[set.node])?;
        let second = runtime.open(g.clone())?;
        second.run(&[], &[], &[add.node])?;
        first.close()?;
        second.run(&[], &[], &[add.node])?;
        drop(second);
        let third = runtime.open(g)?;
        assert_eq!(third.run(&[], &[v], &[])?[0].item::<f32>()?, 42.0);
        Ok(())
    })
}

#[test]
fn threads_run_steps_of_one_session() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let second = scope.device(runtime.second());
        let x = scope.placeholder("x", DType::Int64, [0usize; 0]);
        let square = second.mul(x, x);
        let v = second.variable("threads/v", DType::Int64, [0usize; 0]);
        let set = second.assign(v, second.constant(0i64));
        let add =
            second.op("AssignAdd").input(v).input(second.constant(1i64)).attr("use_locking", true).output();
        let session = runtime.open(scope.finish()?)?;
        session.run(&[], &[], &[set.node])?;
        let failures: Vec<String> = std::thread::scope(|threads| {
            let session = &session;
            let steps = (0..8i64).map(|t| {
                threads.spawn(move || -> Result<(), String> {
                    for i in 0..25 {
                        let i = t * 100 + i;
                        let got = session.run(&[(x, Tensor::scalar(i))], &[square], &[add.node]);
                        let got = got.map_err(|e| e.to_string())?;
                        let got = got[0].item::<i64>().map_err(|e| e.to_string())?;
                        if got != i * i {
                            return Err(format!("{got} for {i}"));
                        }
                    }
                    Ok(())
                })
            });
            let steps: Vec<_> = steps.collect();
            steps
                .into_iter()
                .filter_map(|s| s.join().unwrap_or_else(|_| Err("a panic".into())).err())
                .collect()
        });
        assert!(failures.is_empty(), "{failures:?}");
        assert_eq!(session.run(&[], &[v], &[])?[0].item::<i64>()?, 200);
        Ok(())
    })
}

/// Dropping the future of a step cancels the step; the caller needs no tokio runtime.
#[test]
fn dropped_future_cancels_its_step() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let v = scope.variable("dropped/v", DType::Float, [0usize; 0]);
        let one = scope.constant(1f32);
        let (set, add) = (scope.assign(v, one), scope.assign_add(v, one));
        let waits = [endless(&scope, runtime.first()), endless(&scope, runtime.second())];
        let session = runtime.open(scope.finish()?)?;
        session.run(&[], &[], &[set.node])?;
        for (i, wait) in waits.into_iter().enumerate() {
            let mut step = Box::pin(session.step().fetch(wait).target(add).run_async());
            let mut context = Context::from_waker(Waker::noop());
            let deadline = Instant::now() + Duration::from_secs(30);
            // The step has begun once it has incremented the variable.
            while session.run(&[], &[v], &[])?[0].item::<f32>()? != 2.0 + i as f32 {
                assert!(matches!(step.as_mut().poll(&mut context), Poll::Pending));
                assert!(Instant::now() < deadline, "the step does not begin");
            }
            drop(step);
        }
        // A future that is dropped before it is polled starts no step.
        drop(session.step().fetch(waits[0]).run_async());
        let start = Instant::now();
        session.close()?;
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        Ok(())
    })
}

#[test]
fn partial_runs_compute_with_the_feeds_so_far() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let x = scope.placeholder("x", DType::Float, [0usize; 0]);
        let y = scope.placeholder("y", DType::Float, [0usize; 0]);
        let one = scope.constant(1f32);
        let first = scope.op("AddV2").device(runtime.second()).input(x).input(one).output();
        let second = scope.op("Mul").device(runtime.first()).input(first).input(y).output();
        let v = scope.variable("parts/v", DType::Float, [0usize; 0]);
        let set = scope.assign(v, first);
        let session = runtime.open(scope.finish()?)?;
        let value = |v: f32| Tensor::scalar(v);

        let run = session.partial_run(&[x, y], &[first, second], &[set.node])?;
        assert_fails(run.run(&[(x, value(1.0))], &[second]), Code::InvalidArgument, &["can't be computed"]);
        assert_eq!(run.run(&[(x, value(1.0))], &[first])?, [value(2.0)]);
        assert_fails(run.run(&[(x, value(1.0))], &[]), Code::InvalidArgument, &["already been fed"]);
        assert_fails(run.run(&[], &[one]), Code::InvalidArgument, &["was not specified"]);
        assert_eq!(run.run(&[(y, value(5.0))], &[second])?, [value(10.0)]);
        assert_fails(run.run(&[], &[]), Code::InvalidArgument, &["Must run PartialRunSetup"]);
        // The last call of the partial run has waited for the targets.
        assert_eq!(session.run(&[], &[v], &[])?, [value(2.0)]);

        // Several partial runs are open at the same time. One of them is never finished, and ends when the
        // session is closed.
        let runs = (0..3)
            .map(|_| session.partial_run(&[x, y], &[first, second], &[]))
            .collect::<Result<Vec<_>, _>>()?;
        for (i, run) in runs.iter().enumerate() {
            assert_eq!(run.run(&[(x, value(i as f32))], &[first])?, [value(i as f32 + 1.0)]);
        }
        for (i, run) in runs.iter().enumerate().skip(1) {
            assert_eq!(run.run(&[(y, value(2.0))], &[second])?, [value(2.0 * (i as f32 + 1.0))]);
        }
        let start = Instant::now();
        session.close()?;
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        Ok(())
    })
}

#[test]
fn closing_a_session_cancels_its_steps() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let v = scope.variable("closed/v", DType::Float, [0usize; 0]);
        let one = scope.constant(1f32);
        let (set, add) = (scope.assign(v, one), scope.assign_add(v, one));
        let wait = endless(&scope, runtime.second());
        let session = runtime.open(scope.finish()?)?;
        session.run(&[], &[], &[set.node])?;
        let tokio_runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let mut step = Box::pin(session.step().fetch(wait).target(add).run_async());
        let mut context = Context::from_waker(Waker::noop());
        while session.run(&[], &[v], &[])?[0].item::<f32>()? != 2.0 {
            assert!(matches!(step.as_mut().poll(&mut context), Poll::Pending));
        }
        // Closing a session while a step runs does not wait for the step.
        session.close()?;
        let ended = tokio_runtime.block_on(step);
        assert_fails(ended, Code::Cancelled, &["Session::Close()"]);
        assert_fails(session.run(&[], &[one], &[]), Code::FailedPrecondition, &["closed"]);
        assert_fails(session.extend(scope.finish()?), Code::FailedPrecondition, &["closed"]);
        assert_fails(session.list_devices(), Code::FailedPrecondition, &["closed"]);
        session.close()?;
        tokio_runtime.block_on(async { drop(session) });
        // A new session on the same server or cluster works.
        let again = runtime.open(scope.finish()?)?;
        assert_eq!(again.run(&[], &[one], &[])?[0].item::<f32>()?, 1.0);
        Ok(())
    })
}

#[test]
fn invalid_and_unreachable_targets_are_errors() -> Fallible {
    let graph = Scope::new().finish()?;
    for target in ["", "host:1", "http://host:1", "grpc://", "grpc://host", "grpc://a b:1"] {
        let refused = Session::connect(target, graph.clone(), SessionOptions::default());
        assert_fails(refused, Code::InvalidArgument, &[target]);
    }
    let unused = Cluster::reserve(&[("worker", 1)])?;
    let options = SessionOptions { deadline: Some(Duration::from_millis(300)), ..SessionOptions::default() };
    let start = Instant::now();
    let refused = Session::connect(&unused.target("worker", 0), graph, options);
    assert_fails(refused, Code::Unavailable, &[&unused.address("worker", 0).to_string()]);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    Ok(())
}

#[test]
fn conditionals_run_one_branch_and_have_gradients() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let first = scope.device(runtime.first());
        let x = first.placeholder("x", DType::Float, [2]);
        let zero = first.constant(0f32);
        let is_positive = first.greater(first.sum(x, &[0], false), zero);
        let inner_limit = first.constant(5f32);
        let there = runtime.second().to_owned();
        let y = first.cond(
            is_positive,
            |s| {
                let small = s.less(s.sum(x, &[0], false), inner_limit);
                let doubled = s.device(&there).mul(x, s.constant(2f32));
                s.cond(small, |s| vec![s.mul(doubled, x)], |s| vec![s.add(doubled, s.constant(1f32))])
            },
            |s| vec![s.neg(x)],
        );
        let [y] = y[..] else { return Err(scope.finish().err().map_or("no output".into(), |e| e.into())) };
        let gradient = scope.gradients(&[y], &[x], &[])?[0].ok_or("no gradient")?;
        let session = runtime.open(scope.finish()?)?;
        for (at, value, slope) in [
            ([1f32, 2.0], [2f32, 8.0], [4f32, 8.0]),
            ([3.0, 4.0], [7.0, 9.0], [2.0, 2.0]),
            ([-3.0, 1.0], [3.0, -1.0], [-1.0, -1.0]),
        ] {
            let got = session.run(&[(x, Tensor::vector(&at)?)], &[y, gradient], &[])?;
            assert_eq!((floats(&got[0])?, floats(&got[1])?), (value.to_vec(), slope.to_vec()));
        }
        Ok(())
    })
}

#[test]
fn nested_loops_run_over_several_devices() -> Fallible {
    on_each_runtime(|runtime| {
        let scope = Scope::new();
        let first = scope.device(runtime.first());
        let n = first.placeholder("n", DType::Int32, anabranch::graph::PartialShape::scalar());
        let factor = first.placeholder("factor", DType::Float, [2]);
        let (zero, ones) = (first.constant(0i32), first.constant_vector(&[1f32, 1.0]));
        let there = runtime.second().to_owned();
        let options = anabranch::graph::WhileOptions::default();
        let total = first.while_loop(
            &[zero, ones],
            |s, at| s.less(at[0], n),
            |s, at| {
                // The inner loop runs as many iterations as the outer loop has completed.
                let start = s.constant(0i32);
                let inner = s.while_loop(
                    &[start, at[1]],
                    |s, inner| s.less(inner[0], at[0]),
                    |s, inner| {
                        let next = s.device(&there).mul(inner[1], factor);
                        vec![s.add(inner[0], s.constant(1i32)), next]
                    },
                    &options,
                );
                vec![s.add(at[0], s.constant(1i32)), inner.get(1).copied().unwrap_or(at[1])]
            },
            &options,
        );
        let [iterations, total] = total[..] else {
            return Err(scope.finish().err().map_or("no output".into(), |e| e.into()));
        };
        assert_eq!(scope.shape(total).to_string(), "[2]");
        let session = runtime.open(scope.finish()?)?;
        for count in [0, 1, 5] {
            let feeds = [(n, Tensor::from(count)), (factor, Tensor::vector(&[2f32, -1.0])?)];
            let got = session.run(&feeds, &[iterations, total], &[])?;
            let times = count * (count - 1).max(0) / 2;
            assert_eq!(got[0].item::<i32>()?, count);
            assert_eq!(floats(&got[1])?, [2f32.powi(times), (-1f32).powi(times)]);
        }
        Ok(())
    })
}

#[test]
fn invalid_conditionals_and_loops_are_errors_with_a_reason() -> Fallible {
    let refusal = |build: &dyn Fn(&Scope)| {
        let scope = Scope::new();
        build(&scope);
        scope.finish().err().map(|e| e.to_string()).unwrap_or_default()
    };
    let options = anabranch::graph::WhileOptions::default();
    let unequal = refusal(&|s| {
        let yes = s.constant(true);
        s.cond(yes, |s| vec![s.constant(1f32)], |_| Vec::new());
    });
    assert_eq!(unequal, "the sides of a branch give 1 and 0 values");
    let escaped = refusal(&|s| {
        let mut inside = None;
        let yes = s.constant(true);
        s.cond(yes, |s| vec![*inside.insert(s.constant(1f32))], |s| vec![s.constant(2f32)]);
        let used = |s: &Scope| vec![s.neg(inside.unwrap_or_else(|| s.constant(0f32)))];
        s.cond(yes, used, used);
    });
    assert!(escaped.contains("is within another branch or loop"), "{escaped}");
    let growing = refusal(&|s| {
        let start = s.constant_vector(&[1f32]);
        let yes = s.constant(true);
        let double = |s: &Scope, at: &[Output]| vec![s.concat(&[at[0], at[0]], 0)];
        s.while_loop(&[start], |s, _| s.identity(yes), double, &options);
    });
    assert!(growing.contains("give shape invariants"), "{growing}");
    Ok(())
}
