//! Repeated segments: when they are captured and replayed, and that a replay overwrites no memory that is still
//! read.

use super::Fallible;
use super::cases::{Random, inputs};
use super::op_nodes::rows;
use super::partition::{Partition, four_copies_of};
use super::software::gpu::{DEADLINE, Gpu};
use super::software::recording::RecordingDriver;
use device::Value;
use device::gpu_options::GpuOptions;
use device::kernel::{Kernel, KernelDef};
use device::segment_runner::CaptureClass;
use device::variable::Variable;
use graph::{DType, Node, PortType, Shape, Tensor};
use kernels::testing::{make_kernel, run_node};
use std::time::Instant;

fn options(graphs: bool) -> GpuOptions {
    GpuOptions { memory_fraction: 1.0, graphs, ..GpuOptions::default() }
}

fn gpu(memory: u64) -> Fallible<Gpu> {
    Gpu::with(memory, &options(true))
}

fn computing(graphs: bool) -> Fallible<Gpu> {
    Gpu::with_driver(RecordingDriver::new(1 << 20).executing_ptx(), 0, &options(graphs))
}

/// A graph of four kernels that run as one segment.
const PRODUCTS: &str = "
    x <- float
    a = MatMul[T=float](x, x)
    b = MatMul[T=float](a, x)
    c = Relu[T=float](b)
    d = MatMul[T=float](c, a)
    d -> float
";

fn square(size: usize) -> Fallible<Tensor> {
    Ok(Tensor::full(0.5f32, Shape::new(&[size, size])?)?)
}

/// Returns the log lines of kernels that the GPU ran, one by one or in a CUDA graph.
fn kernels(log: &[String]) -> Vec<String> {
    let is_kernel = |line: &&String| line.starts_with("product") || line.starts_with("map<");
    log.iter().filter(is_kernel).cloned().collect()
}

/// Returns the number of CUDA graph launches in the log.
fn launches(log: &[String]) -> usize {
    log.iter().filter(|line| line.starts_with("graph of")).count()
}

/// Waits until exactly `used` bytes of GPU memory are in use; the thread that ended a step may still hold
/// memory for a moment.
fn settle(gpu: &Gpu, used: u64) -> Fallible {
    let deadline = Instant::now() + DEADLINE;
    while gpu.driver.used() != used && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (used, vec![]));
    Ok(())
}

#[test]
fn segment_is_captured_in_its_third_run_with_equal_results() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    let mut logs = Vec::new();
    for _ in 0..5 {
        partition.step(&[("x", square(4)?)], &["d"])?;
        logs.push(gpu.driver.log());
    }
    let first = kernels(&logs[0]);
    assert_eq!(first.len(), 4, "{:#?}", logs[0]);
    for (i, log) in logs.iter().enumerate() {
        assert_eq!((kernels(log), launches(log)), (first.clone(), usize::from(i >= 2)), "step {i}: {log:#?}");
    }
    assert_eq!(gpu.driver.graphs(), (1, 1));
    drop(partition);
    settle(&gpu, 0)?;
    assert_eq!(gpu.driver.graphs(), (1, 0));
    Ok(())
}

#[test]
fn nothing_is_captured_with_graphs_disabled() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    for _ in 0..5 {
        partition.step(&[("x", square(4)?)], &["d"])?;
    }
    assert_eq!((gpu.driver.graphs(), gpu.driver.races()), ((0, 0), vec![]));
    Ok(())
}

#[test]
fn each_shape_has_its_own_graph() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    let mut launched = Vec::new();
    for size in [4, 4, 4, 2, 2, 2, 4, 2, 3, 4] {
        partition.step(&[("x", square(size)?)], &["d"])?;
        launched.push(launches(&gpu.driver.log()));
    }
    assert_eq!(launched, [0, 0, 1, 0, 0, 1, 1, 1, 0, 1]);
    assert_eq!((gpu.driver.graphs(), gpu.driver.races()), ((2, 2), vec![]));
    Ok(())
}

#[test]
fn replay_waits_for_the_download_of_its_previous_output() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    for _ in 0..3 {
        partition.step(&[("x", square(4)?)], &["d"])?;
    }
    gpu.driver.log();
    partition.step(&[("x", square(4)?)], &["d"])?;
    let log = gpu.driver.log();
    let before: Vec<&str> =
        log.iter().map(String::as_str).take_while(|line| !line.starts_with("graph")).collect();
    // The first wait is for the upload, which is copied to the graph's input; the second is for the download of
    // the last step's output, which the graph overwrites.
    assert_eq!(
        before,
        ["allocate 64 on 1", "copy in 64 on 1", "mark 1", "wait 0", "copy 64 on 0", "wait 0"],
        "{log:#?}"
    );
    assert_eq!(gpu.driver.races(), Vec::<String>::new());
    Ok(())
}

/// A graph in which the output of a segment is held until `late` is fed.
const HELD: &str = "
    x <- float
    late <- float
    a = MatMul[T=float](x, x)
    b = MatMul[T=float](a, x)
    c = Relu[T=float](b)
    d = MatMul[T=float](c, a)
    sum = AddV2[T=float](d, late)
    sum -> float
";

#[test]
fn held_outputs_are_not_overwritten_by_the_next_step() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let partition = Partition::of_text(HELD, &gpu.device)?;
    for _ in 0..3 {
        partition.step(&[("x", square(4)?), ("late", square(4)?)], &["sum"])?;
    }
    assert_eq!(launches(&gpu.driver.log()), 1);
    let (one, two, three) = (partition.begin(false), partition.begin(false), partition.begin(false));
    let mut launched = Vec::new();
    for step in [&one, &two, &three] {
        let before = kernels(&gpu.driver.log()).len();
        step.feed("x", Some(square(4)?))?;
        // Waits until the four kernels of the segment have been enqueued.
        let (deadline, mut log) = (Instant::now() + DEADLINE, Vec::new());
        while kernels(&log).len() < 4 && Instant::now() < deadline {
            log.extend(gpu.driver.log());
            std::thread::yield_now();
        }
        assert_eq!((before, kernels(&log).len()), (0, 4), "{log:#?}");
        launched.push(launches(&log));
    }
    // The first step holds the graph's output, so the second and the third run kernel by kernel.
    assert_eq!(launched, [1, 0, 0]);
    for step in [&one, &two, &three] {
        step.feed("late", Some(square(4)?))?;
        step.end()?;
        assert!(step.fetch("sum")?.is_some());
    }
    // In later steps the output is copied out of the graph's memory, so that concurrent steps can all replay.
    gpu.driver.log();
    let (one, two) = (partition.begin(false), partition.begin(false));
    for step in [&one, &two] {
        step.feed("x", Some(square(4)?))?;
        step.feed("late", Some(square(4)?))?;
        step.end()?;
    }
    assert_eq!(launches(&gpu.driver.log()), 2);
    drop((one, two, three, partition));
    settle(&gpu, 0)
}

#[test]
fn output_of_one_graph_is_input_of_another_without_a_copy() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let partition = Partition::of_text(
        "
        x <- float
        y <- float
        a = MatMul[T=float](x, x)
        b = MatMul[T=float](a, x)
        c = Relu[T=float](b)
        d = MatMul[T=float](c, a)
        e = MatMul[T=float](d, y)
        f = MatMul[T=float](e, a)
        g = Relu[T=float](f)
        h = MatMul[T=float](g, d)
        h -> float
        ",
        &gpu.device,
    )?;
    for _ in 0..3 {
        partition.step(&[("x", square(4)?), ("y", square(4)?)], &["h"])?;
    }
    gpu.driver.log();
    partition.step(&[("x", square(4)?), ("y", square(4)?)], &["h"])?;
    let log = gpu.driver.log();
    let copies = log.iter().filter(|line| line.starts_with("copy 64 on 0")).count();
    // Only x and y are copied to inputs of a graph.
    assert_eq!((launches(&log), copies), (2, 2), "{log:#?}");
    drop(partition);
    settle(&gpu, 0)
}

#[test]
fn graph_with_as_many_copies_as_kernels_is_rejected() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let text = "
        x <- float, _origin=\"in\"
        y <- float, _origin=\"in\"
        z <- float, _origin=\"in\"
        w <- float, _origin=\"in\"
        a = MatMul[T=float](x, y)
        b = MatMul[T=float](a, z)
        c = Relu[T=float](b)
        d = MatMul[T=float](c, LAST)
        d -> float
    ";
    let run = |last: &str| -> Fallible<usize> {
        let partition = Partition::of_text(&text.replace("LAST", last), &gpu.device)?;
        for _ in 0..20 {
            let feeds = ["x", "y", "z", "w"].map(|name| Ok((name, square(4)?)));
            partition.step(&feeds.into_iter().collect::<Fallible<Vec<_>>>()?, &["d"])?;
        }
        Ok(launches(&gpu.driver.log()))
    };
    // If the last product reads `w`, the graph copies four inputs for four kernels and is evicted; if it reads `z`, the
    // graph copies three inputs.
    assert_eq!((run("w")?, run("z")?), (8, 18));
    Ok(())
}

#[test]
fn segment_with_dead_inputs_is_skipped() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    for _ in 0..4 {
        let step = partition.begin(false);
        step.feed("x", None)?;
        step.end()?;
        assert_eq!(step.fetch("d")?, None);
    }
    assert_eq!(kernels(&gpu.driver.log()), Vec::<String>::new());
    assert_eq!(partition.step(&[("x", square(4)?)], &["d"])?.len(), 1);
    drop(partition);
    settle(&gpu, 0)
}

#[test]
fn kernels_independent_of_dead_inputs_run() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let partition = Partition::of_text(
        "
        x <- float
        trigger = ControlTrigger(^x)
        y = Const[dtype=float, value=float<2,2>{1, 2, 3, 4}]()
        a = MatMul[T=float](y, y, ^trigger)
        b = MatMul[T=float](a, y)
        c = Relu[T=float](b)
        d = MatMul[T=float](c, a)
        e = MatMul[T=float](d, x)
        f = MatMul[T=float](e, x)
        g = Relu[T=float](f)
        h = MatMul[T=float](g, x)
        h -> float
        ",
        &gpu.device,
    )?;
    for _ in 0..4 {
        gpu.driver.log();
        let step = partition.begin(false);
        step.feed("x", None)?;
        step.end()?;
        assert_eq!(step.fetch("h")?, None);
        assert_eq!(kernels(&gpu.driver.log()).len(), 4);
    }
    assert_eq!(gpu.driver.races(), Vec::<String>::new());
    Ok(())
}

#[test]
fn traced_step_reports_each_kernel() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    for _ in 0..3 {
        partition.step(&[("x", square(4)?)], &["d"])?;
    }
    let step = partition.begin(true);
    step.feed("x", Some(square(4)?))?;
    let mut names: Vec<String> = step.end()?.nodes.iter().map(|node| node.node.to_string()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c", "d", "send_d", "x"]);
    Ok(())
}

#[test]
fn failed_capture_is_not_retried() -> Fallible {
    let gpu = gpu(1 << 20)?;
    gpu.driver.refuse_captures();
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    for _ in 0..6 {
        assert_eq!(partition.step(&[("x", square(4)?)], &["d"])?.len(), 1);
    }
    let log = gpu.driver.log();
    let tried = log.iter().filter(|line| line.starts_with("capture on")).count();
    assert_eq!((tried, kernels(&log).len(), gpu.driver.graphs()), (1, 24, (0, 0)), "{log:#?}");
    settle(&gpu, 0)
}

#[test]
fn least_recently_used_graph_frees_its_memory() -> Fallible {
    let gpu = gpu(1 << 20)?;
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    let mut used = Vec::new();
    for size in [1, 2, 3, 4, 16, 5] {
        for _ in 0..3 {
            partition.step(&[("x", square(size)?)], &["d"])?;
        }
        let (_, left) = gpu.driver.graphs();
        used.push((left, gpu.driver.used()));
    }
    let left: Vec<usize> = used.iter().map(|(left, _)| *left).collect();
    assert_eq!(left, [1, 2, 3, 4, 4, 4]);
    drop(partition);
    settle(&gpu, 0)?;
    assert_eq!(gpu.driver.graphs(), (6, 0));
    Ok(())
}

#[test]
fn out_of_memory_error_names_graph_memory() -> Fallible {
    let gpu = gpu(1000)?;
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    for _ in 0..3 {
        partition.step(&[("x", square(4)?)], &["d"])?;
    }
    let error = gpu.upload(Tensor::zeros(DType::Float, Shape::new(&[249])?)?).err().ok_or("no error")?;
    assert!(error.to_string().contains("the captured graph of 4 kernels from a on ("), "{error}");
    Ok(())
}

#[test]
fn segment_runs_without_a_graph_if_memory_is_short() -> Fallible {
    // Run one by one, the kernels take three tensors of 64 bytes besides the input; the graph takes more.
    let gpu = gpu(280)?;
    let partition = Partition::of_text(PRODUCTS, &gpu.device)?;
    for _ in 0..6 {
        assert_eq!(partition.step(&[("x", square(4)?)], &["d"])?.len(), 1);
    }
    assert_eq!(launches(&gpu.driver.log()), 0);
    settle(&gpu, 0)
}

/// Returns the text of a graph that trains one layer, with resource variables, or reference variables if
/// `is_ref`.
fn training(is_ref: bool) -> String {
    let (variables, read, update) = match is_ref {
        true => (
            "w = VariableV2[dtype=float, shape=<4,4>]()
             b = VariableV2[dtype=float, shape=<4>]()",
            "rw = Identity[T=float](w)
             rb = Identity[T=float](b)",
            "uw = ApplyGradientDescent[T=float](w, rate, dw)
             ub = ApplyGradientDescent[T=float](b, rate, db)",
        ),
        false => (
            "w = VarHandleOp[dtype=float, shape=<4,4>, shared_name=\"w\"]()
             b = VarHandleOp[dtype=float, shape=<4>, shared_name=\"b\"]()",
            "rw = ReadVariableOp[dtype=float](w)
             rb = ReadVariableOp[dtype=float](b)",
            "uw = ResourceApplyGradientDescent[T=float](w, rate, dw)
             ub = ResourceApplyGradientDescent[T=float](b, rate, db)",
        ),
    };
    format!(
        "{variables}
         x <- float
         {read}
         rate = Const[dtype=float, value=float<>{{0.5}}]()
         product = MatMul[T=float](x, rw)
         y = BiasAdd[T=float](product, rb)
         dw = MatMul[T=float, transpose_a=true](x, y)
         db = BiasAddGrad[T=float](y)
         {update}
         y -> float"
    )
}

/// Returns the text of a graph that initialises the variables of [`training`].
fn initial(is_ref: bool) -> String {
    let (make, assign) = match is_ref {
        true => ("VariableV2[dtype=float, shape=", "Assign[T=float]"),
        false => ("VarHandleOp[dtype=float, shape=", "AssignVariableOp[dtype=float]"),
    };
    let shared = |name| if is_ref { String::new() } else { format!(", shared_name=\"{name}\"") };
    format!(
        "w = {make}<4,4>{}]()
         b = {make}<4>{}]()
         half = Const[dtype=float, value=float<>{{0.5}}]()
         of_w = Const[dtype=int32, value=int32<2>{{4, 4}}]()
         of_b = Const[dtype=int32, value=int32<1>{{4}}]()
         vw = Fill[T=float, index_type=int32](of_w, half)
         vb = Fill[T=float, index_type=int32](of_b, half)
         iw = {assign}(w, vw)
         ib = {assign}(b, vb)",
        shared("w"),
        shared("b")
    )
}

#[test]
fn variables_changed_by_a_graph_keep_their_memory() -> Fallible {
    for is_ref in [true, false] {
        let gpu = gpu(1 << 20)?;
        let initialize = Partition::of_text(&initial(is_ref), &gpu.device)?;
        let train = Partition::of_text(&training(is_ref), &gpu.device)?;
        initialize.step(&[], &[])?;
        gpu.driver.log();
        let mut launched = Vec::new();
        for _ in 0..5 {
            train.step(&[("x", square(4)?)], &["y"])?;
            let log = gpu.driver.log();
            let updates = log.iter().filter(|line| line.starts_with("step<GradientDescent")).count();
            launched.push(launches(&log));
            // One by one the two updates are two launches; in a CUDA graph they are batched into one.
            assert_eq!(updates, 2 - launches(&log), "{log:#?}");
        }
        assert_eq!(launched, [0, 0, 1, 1, 1], "by reference: {is_ref}");
        // The initialisation gives the variables other memory, so the captured graph cannot be launched, and a
        // new graph is captured.
        initialize.step(&[], &[])?;
        gpu.driver.log();
        launched.clear();
        for _ in 0..5 {
            train.step(&[("x", square(4)?)], &["y"])?;
            launched.push(launches(&gpu.driver.log()));
        }
        assert_eq!(launched, [0, 0, 0, 1, 1], "by reference: {is_ref}");
        drop((initialize, train));
        settle(&gpu, (4 * 4 + 4) * 4)?;
        assert_eq!(gpu.driver.graphs(), (2, 0));
    }
    Ok(())
}

/// A graph that reads variable `k`, whose value shares the memory of another partition's constant, and assigns
/// a result to variable `m`.
const ASSIGNED: &str = "
    k = VarHandleOp[dtype=float, shape=<4,4>, shared_name=\"k\"]()
    m = VarHandleOp[dtype=float, shape=<4,4>, shared_name=\"m\"]()
    rk = ReadVariableOp[dtype=float](k)
    rm = ReadVariableOp[dtype=float](m)
    a = MatMul[T=float](rk, rk)
    b = MatMul[T=float](a, rm)
    c = Relu[T=float](b)
    d = AddV2[T=float](c, a)
    am = AssignVariableOp[dtype=float](m, d)
    e = Mul[T=float](c, a, ^am)
    e -> float
";

const ASSIGNED_FIRST: &str = "
    k = VarHandleOp[dtype=float, shape=<4,4>, shared_name=\"k\"]()
    m = VarHandleOp[dtype=float, shape=<4,4>, shared_name=\"m\"]()
    quarters = Const[dtype=float, value=float<4,4>{QUARTERS}]()
    ik = AssignVariableOp[dtype=float](k, quarters)
    im = AssignVariableOp[dtype=float](m, quarters)
";

#[test]
fn assignment_copies_into_the_variables_memory() -> Fallible {
    let first = ASSIGNED_FIRST.replace("QUARTERS", &["0.25"; 16].join(", "));
    let run = |graphs: bool| -> Fallible<(Vec<usize>, Vec<Tensor>)> {
        let gpu = computing(graphs)?;
        // The partition is kept alive, because it holds the constant whose memory `k` shares.
        let initialize = Partition::of_text(&first, &gpu.device)?;
        let step = Partition::of_text(ASSIGNED, &gpu.device)?;
        initialize.step(&[], &[])?;
        gpu.driver.log();
        let (mut launched, mut given) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            given.extend(step.step(&[], &["e"])?);
            launched.push(launches(&gpu.driver.log()));
        }
        assert_eq!(gpu.driver.races(), Vec::<String>::new());
        Ok((launched, given))
    };
    let ((launched, with), (_, without)) = (run(true)?, run(false)?);
    assert_ne!(without[4], without[5]);
    assert_eq!((launched, with), (vec![0, 0, 1, 1, 1, 1], without));
    Ok(())
}

/// Number of variables of [`many_changes`]; each is updated by a slice of one tensor, the first twice, and the
/// first is then read.
const CHANGED: usize = 40;

fn many_changes() -> String {
    let of_each = |i: usize| {
        format!(
            "w{i} = VarHandleOp[dtype=float, shape=<{i},7>, shared_name=\"w{i}\"]()
             s{i} = Slice[T=float, Index=int32](d, none, of{i})
             r{i} = Reshape[T=float, Tshape=int32](s{i}, as{i})
             u{i} = ResourceApplyGradientDescent[T=float](w{i}, rate, r{i})
             of{i} = Const[dtype=int32, value=int32<1>{{{}}}]()
             as{i} = Const[dtype=int32, value=int32<2>{{{i}, 7}}]()
            ",
            7 * i
        )
    };
    let each: String = (1..=CHANGED).map(of_each).collect();
    format!(
        "x <- float
         none = Const[dtype=int32, value=int32<1>{{0}}]()
         rate = Const[dtype=float, value=float<>{{0.5}}]()
         a = Tanh[T=float](x)
         d = Relu[T=float](a)
         {each}again = ResourceApplyGradientDescent[T=float](w1, rate, r1, ^u1)
         r = ReadVariableOp[dtype=float](w1, ^again)
         e = Mul[T=float](r, r)
         e -> float"
    )
}

#[test]
fn small_updates_of_many_variables_are_batched_in_a_graph() -> Fallible {
    let first: String = (1..=CHANGED)
        .map(|i| {
            format!(
                "w{i} = VarHandleOp[dtype=float, shape=<{i},7>, shared_name=\"w{i}\"]()
                 of{i} = Const[dtype=int32, value=int32<2>{{{i}, 7}}]()
                 f{i} = Fill[T=float, index_type=int32](of{i}, one)
                 i{i} = AssignVariableOp[dtype=float](w{i}, f{i})
                "
            )
        })
        .collect();
    let first = format!("one = Const[dtype=float, value=float<>{{1}}]()\n{first}");
    let read: String = (1..=CHANGED)
        .map(|i| {
            format!(
                "w{i} = VarHandleOp[dtype=float, shape=<{i},7>, shared_name=\"w{i}\"]()
                 r{i} = ReadVariableOp[dtype=float](w{i})
                 r{i} -> float
                "
            )
        })
        .collect();
    let x = Tensor::vector(&(0..7 * CHANGED).map(|i| (i % 13) as f32 * 0.1 - 0.3).collect::<Vec<_>>())?;
    let run = |graphs: bool| -> Fallible<(Vec<[usize; 2]>, Vec<Tensor>)> {
        let gpu = computing(graphs)?;
        Partition::of_text(&first, &gpu.device)?.step(&[], &[])?;
        let step = Partition::of_text(&many_changes(), &gpu.device)?;
        let (mut done, mut given) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            gpu.driver.log();
            given.extend(step.step(&[("x", x.clone())], &["e"])?);
            let log = gpu.driver.log();
            let changes = log.iter().filter(|line| line.starts_with("step<")).count();
            done.push([launches(&log), changes]);
        }
        let names: Vec<String> = (1..=CHANGED).map(|i| format!("r{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        given.extend(Partition::of_text(&read, &gpu.device)?.step(&[], &names)?);
        assert_eq!(gpu.driver.races(), Vec::<String>::new());
        Ok((done, given))
    };
    let ((done, with), (_, without)) = (run(true)?, run(false)?);
    assert_ne!(without[3], without[4]);
    assert_eq!(with, without);
    // Steps without a graph launch the 41 updates one by one. In a graph a launch has up to 16 updates, and the
    // second update of the first variable is in a later launch than the first.
    assert_eq!(done[..2], [[0, 41], [0, 41]]);
    assert!(done[2..].iter().all(|&[graphs, changes]| graphs > 0 && changes <= 5), "{done:?}");
    Ok(())
}

/// Returns the text of a graph of two segments; the output `d` of the first is also fetched. Both segments read
/// the variable's initial value; the second updates the variable and then computes `minuend` - `f`.
fn of_two_segments(minuend: &str) -> String {
    format!(
        "w = VarHandleOp[dtype=float, shape=<4,4>, shared_name=\"w\"]()
         x <- float
         rw = ReadVariableOp[dtype=float](w)
         rate = Const[dtype=float, value=float<>{{0.01}}]()
         a = MatMul[T=float](x, rw)
         b = Relu[T=float](a)
         c = MatMul[T=float](b, rw)
         d = Relu[T=float](c)
         d -> float
         e = MatMul[T=float](d, rw)
         f = Mul[T=float](e, a)
         g = MatMul[T=float](x, f)
         uw = ResourceApplyGradientDescent[T=float](w, rate, g)
         delta = Sub[T=float]({minuend}, f, ^uw)
         delta -> float"
    )
}

#[test]
fn variable_without_readers_is_updated_in_place() -> Fallible {
    let first = ASSIGNED_FIRST.replace("QUARTERS", &["0.25"; 16].join(", ")).replace("\"k\"", "\"w\"");
    let run = |graphs: bool, minuend: &str| -> Fallible<(Vec<[usize; 2]>, Vec<Tensor>)> {
        let gpu = computing(graphs)?;
        Partition::of_text(&first, &gpu.device)?.step(&[], &[])?;
        let step = Partition::of_text(&of_two_segments(minuend), &gpu.device)?;
        gpu.driver.log();
        let (mut done, mut given) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            given.extend(step.step(&[("x", square(4)?)], &["d", "delta"])?);
            let log = gpu.driver.log();
            done.push([launches(&log), log.iter().filter(|line| line.starts_with("copy 64 on 0")).count()]);
        }
        assert_eq!(gpu.driver.races(), Vec::<String>::new());
        Ok((done, given))
    };
    // `done` has [number of graph launches, number of copies] of each step. Each launch copies `x`; the first
    // step also copies `w`, because the value of `w` shares its memory with a constant.
    let ((done, with), (_, without)) = (run(true, "e")?, run(false, "e")?);
    assert_ne!(without[6], without[8]);
    assert_eq!((done, with), (vec![[0, 1], [0, 0], [2, 2], [2, 2], [2, 2]], without));
    // `rw`, the value before the update, is used after the update, so the update is made in a copy, and the
    // segment that contains the update is not captured.
    let ((done, with), (_, without)) = (run(true, "rw")?, run(false, "rw")?);
    let graphs: Vec<usize> = done.iter().map(|[graphs, _]| *graphs).collect();
    assert_eq!((graphs, with), (vec![0, 0, 1, 1, 1], without));
    Ok(())
}

#[test]
fn graph_without_outputs_keeps_its_memory() -> Fallible {
    let gpu = gpu(1 << 20)?;
    Partition::of_text(&initial(false), &gpu.device)?.step(&[], &[])?;
    let train = Partition::of_text(
        "w = VarHandleOp[dtype=float, shape=<4,4>, shared_name=\"w\"]()
         rate = Const[dtype=float, value=float<>{0.5}]()
         rw = ReadVariableOp[dtype=float](w)
         a = MatMul[T=float](rw, rw)
         b = Relu[T=float](a)
         c = MatMul[T=float](b, rw)
         uw = ResourceApplyGradientDescent[T=float](w, rate, c)",
        &gpu.device,
    )?;
    for _ in 0..5 {
        train.step(&[], &[])?;
    }
    assert_eq!((gpu.driver.graphs(), gpu.driver.races()), ((1, 1), vec![]));
    drop(train);
    settle(&gpu, (4 * 4 + 4) * 4)
}

#[test]
fn variable_with_a_held_snapshot_is_not_changed_by_a_graph() -> Fallible {
    let gpu = gpu(1 << 20)?;
    Partition::of_text(&initial(false), &gpu.device)?.step(&[], &[])?;
    let train = Partition::of_text(&training(false), &gpu.device)?;
    for _ in 0..3 {
        train.step(&[("x", square(4)?)], &["y"])?;
    }
    let w = gpu.device.resources().lookup::<Variable>("", "w")?;
    let held = w.snapshot().ok_or("w has no value")?;
    gpu.driver.log();
    train.step(&[("x", square(4)?)], &["y"])?;
    assert_eq!(launches(&gpu.driver.log()), 0);
    let (Value::Device(held), Some(Value::Device(now))) = (held, w.snapshot()) else {
        return Err("w is not on the GPU".into());
    };
    assert!(!std::sync::Arc::ptr_eq(&held.memory, &now.memory), "the snapshot changed");
    assert_eq!(gpu.driver.races(), Vec::<String>::new());
    Ok(())
}

/// Pairs of ops that store `d` of [`PRODUCTS`] beyond the step, and ops that return the value stored by the
/// first step.
const KEEPERS: [(&str, &str); 3] = [
    (
        "n = Stage[dtypes=[float], shared_name=\"area\"](d)",
        "kept = Unstage[dtypes=[float], shared_name=\"area\"]()",
    ),
    (
        "q = FIFOQueueV2[component_types=[float], shared_name=\"q\"]()
         n = QueueEnqueueV2[Tcomponents=[float]](q, d)",
        "q = FIFOQueueV2[component_types=[float], shared_name=\"q\"]()
         kept = QueueDequeueV2[component_types=[float]](q)",
    ),
    (
        "h = GetSessionHandle[T=float](d)
         h -> string",
        "h <- string
         kept = GetSessionTensor[dtype=float](h)",
    ),
];

#[test]
fn kept_outputs_do_not_prevent_replay() -> Fallible {
    for (keep, give) in KEEPERS {
        let gpu = computing(true)?;
        let text = PRODUCTS.replace("d -> float", keep);
        let keeps = Partition::of_text(&text, &gpu.device)?;
        let handles: &[&str] = if keep.contains("Handle") { &["h"] } else { &[] };
        let (mut launched, mut handle) = (Vec::new(), None);
        for step in 1..=6u8 {
            let x = Tensor::full(f32::from(step), Shape::new(&[4, 4])?)?;
            let given = keeps.step(&[("x", x)], handles)?;
            handle = handle.or(given.into_iter().next());
            launched.push(launches(&gpu.driver.log()));
        }
        assert_eq!(launched, [0, 0, 1, 1, 1, 1], "{keep}");
        let gives = Partition::of_text(&format!("{give}\nkept -> float"), &gpu.device)?;
        let handle: Vec<_> = handle.into_iter().map(|handle| ("h", handle)).collect();
        // With x = 1, a is 4, b and c are 16, and d is 4 * 16 * 4.
        assert_eq!(gives.step(&handle, &["kept"])?, [Tensor::full(256f32, Shape::new(&[4, 4])?)?], "{keep}");
        drop((keeps, gives));
        assert_eq!(gpu.driver.races(), Vec::<String>::new());
    }
    Ok(())
}

/// Returns for each input of the node whether it is in host memory; `None` if the kernel takes `int32` inputs
/// in GPU memory: they would be uploaded first, and no segment contains such a kernel.
fn fed_to_gpu(def: &KernelDef, node: &Node) -> Option<Vec<bool>> {
    let mut on_host = Vec::new();
    for arg in node.op.inputs.iter() {
        let count = node.op.arg_count(arg, &node.attrs).ok()?;
        on_host.extend(std::iter::repeat_n(def.is_on_host(arg.name), count));
    }
    let types = node.input_types().ok()?;
    let is_there = |(port, on_host): (&PortType, &bool)| *on_host || port.dtype != DType::Int32;
    types.iter().zip(&on_host).all(is_there).then_some(on_host)
}

#[test]
fn every_capturable_kernel_agrees_in_a_graph() -> Fallible {
    let mut random = Random(1);
    let mut captured = 0;
    for (def, nodes) in rows(cuda::table())? {
        // A `Const` enqueues no kernel in a step.
        if def.capture != CaptureClass::Work || def.op == "Const" {
            continue;
        }
        let gpu = gpu(64 << 20)?;
        let Some((node, on_host)) = nodes.iter().find_map(|node| Some((node, fed_to_gpu(def, node)?))) else {
            continue;
        };
        let Some(sets) = inputs(node, &mut random)? else { continue };
        // Takes the largest valid set of inputs in which all inputs in host memory are `int32`, so that they
        // can be constants in host memory.
        let is_valid = |set: &Vec<Tensor>| {
            let lies_there = |(tensor, on_host): (&Tensor, &bool)| !on_host || tensor.dtype() == DType::Int32;
            set.iter().zip(&on_host).all(lies_there)
                && run_node(node, set.iter().cloned().map(Value::Host).collect()).is_ok()
        };
        let size = |set: &Vec<Tensor>| set.iter().map(Tensor::num_elements).sum::<usize>();
        let Some(set) = sets.into_iter().filter(is_valid).max_by_key(size) else { continue };
        let (graph, feeds, names) = four_copies_of(def, node, set)?;
        let partition = Partition::new(&graph, &gpu.device).map_err(|e| format!("{def:?}: {e}"))?;
        let feeds: Vec<(&str, Tensor)> =
            feeds.iter().map(|(name, tensor)| (&**name, tensor.clone())).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut logs = Vec::new();
        for _ in 0..4 {
            partition.step(&feeds, &names).map_err(|e| format!("{def:?}: {e}"))?;
            logs.push(gpu.driver.log());
        }
        let ran = |log: &[String]| -> Vec<String> {
            let is_work = |line: &&String| {
                let words = ["allocate", "free", "mark", "wait", "copy", "graph", "captur"];
                !words.iter().any(|word| line.starts_with(word))
            };
            log.iter().filter(is_work).cloned().collect()
        };
        assert_eq!(ran(&logs[3]), ran(&logs[0]), "{def:?}");
        assert!(launches(&logs[3]) >= 1, "{def:?}: {:#?}", logs[3]);
        captured += 1;
        drop(partition);
        settle(&gpu, 0).map_err(|e| format!("{def:?}: {e}"))?;
    }
    assert!(captured > 100, "only {captured}");
    Ok(())
}

#[test]
fn capturable_kernels_are_synchronous() -> Fallible {
    let gpu = gpu(1 << 20)?;
    for (def, nodes) in rows(cuda::table())? {
        for node in nodes.iter().take(1).filter(|_| def.capture != CaptureClass::Never) {
            let kernel = make_kernel(&gpu.device, node).map_err(|e| format!("{def:?}: {e}"))?;
            assert!(matches!(kernel, Kernel::Sync(_)), "{def:?}");
        }
    }
    // Ops that draw random numbers or make handles have kernels that cannot be captured.
    for op in ["RandomUniform", "StatelessRandomNormal", "VarHandleOp"] {
        let rows = cuda::kernels::table().of_op(op);
        assert!(!rows.is_empty() && rows.iter().all(|def| def.capture == CaptureClass::Never), "{op}");
    }
    Ok(())
}
