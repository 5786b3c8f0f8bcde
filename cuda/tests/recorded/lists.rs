//! Tensor lists on the recording driver: elements stay in the GPU's memory, and are copied when a list moves
//! between devices.

use super::Fallible;
use super::cases::Random;
use super::comparison::difference;
use super::node_runner::{self, download, upload};
use super::partition::Partition;
use super::software::gpu::Gpu;
use super::software::recording::RecordingDriver;
use device::Value;
use device::gpu_options::GpuOptions;
use graph::{DType, Node, Optional, PartialShape, Shape, Tensor, TensorList, Variant};

/// A graph of two lowered loops: each iteration of the first reads a row from one list and pushes a result onto
/// another list; the second loop pops the results, as a gradient does.
const LOOPS: &str = "
    x <- float
    limit <- int32
    zero = Const[dtype=int32, value=int32<>{0}]
    any = Const[dtype=int32, value=int32<>{-1}]
    pair = Const[dtype=int32, value=int32<1>{2}]
    start = Const[dtype=float, value=float<2>{0.0, 0.0}]
    rows = TensorListFromTensor[element_dtype=float, shape_type=int32](x, pair)
    made = EmptyTensorList[element_dtype=float, shape_type=int32](pair, any)
    limit/in = Enter[T=int32, FORTH, is_constant=true](limit)
    pair/in = Enter[T=int32, FORTH, is_constant=true](pair)
    rows/in = Enter[T=variant, FORTH, is_constant=true](rows)
    i/in = Enter[T=int32, FORTH](zero)
    s/in = Enter[T=float, FORTH](start)
    made/in = Enter[T=variant, FORTH](made)
    i = Merge[T=int32, N=2](i/in, i/next)
    s = Merge[T=float, N=2](s/in, s/next)
    list = Merge[T=variant, N=2](made/in, made/next)
    less = Less[T=int32](i, limit/in)
    more = LoopCond(less)
    i/switch = Switch[T=int32](i, more)
    s/switch = Switch[T=float](s, more)
    list/switch = Switch[T=variant](list, more)
    i/at = Identity[T=int32](i/switch:1)
    one = Const[dtype=int32, value=int32<>{1}](^i/at)
    i/then = Add[T=int32](i/at, one)
    row = TensorListGetItem[element_dtype=float](rows/in, i/at, pair/in)
    t = AddV2[T=float](s/switch:1, row)
    u = Mul[T=float](t, row)
    v = Sub[T=float](u, s/switch:1)
    s/then = Maximum[T=float](v, t)
    same = Identity[T=variant](list/switch:1)
    pushed = TensorListPushBack[element_dtype=float](same, s/then)
    i/next = NextIteration[T=int32](i/then)
    s/next = NextIteration[T=float](s/then)
    made/next = NextIteration[T=variant](pushed)
    s/exit = Exit[T=float](s/switch)
    list/exit = Exit[T=variant](list/switch)
    length = TensorListLength(list/exit)
    j/in = Enter[T=int32, BACK](length)
    w/in = Enter[T=float, BACK](s/exit)
    back/in = Enter[T=variant, BACK](list/exit)
    zero/in = Enter[T=int32, BACK, is_constant=true](zero)
    any/in = Enter[T=int32, BACK, is_constant=true](any)
    j = Merge[T=int32, N=2](j/in, j/next)
    w = Merge[T=float, N=2](w/in, w/next)
    back = Merge[T=variant, N=2](back/in, back/next)
    left = Greater[T=int32](j, zero/in)
    go = LoopCond(left)
    j/switch = Switch[T=int32](j, go)
    w/switch = Switch[T=float](w, go)
    back/switch = Switch[T=variant](back, go)
    j/at = Identity[T=int32](j/switch:1)
    one/back = Const[dtype=int32, value=int32<>{1}](^j/at)
    j/then = Sub[T=int32](j/at, one/back)
    popped = TensorListPopBack[element_dtype=float](back/switch:1, any/in)
    w/then = Sub[T=float](popped:1, w/switch:1)
    j/next = NextIteration[T=int32](j/then)
    w/next = NextIteration[T=float](w/then)
    back/next = NextIteration[T=variant](popped)
    w/exit = Exit[T=float](w/switch)
    all = TensorListStack[element_dtype=float](list/exit, pair)
    w/exit -> float
    all -> float
";

/// Runs some steps of [`LOOPS`] on lists of three rows; returns the results, and the driver's log of each step.
fn run(device: &Gpu) -> Fallible<(Vec<Tensor>, Vec<Vec<String>>)> {
    let text = LOOPS
        .replace("FORTH", "frame_name=\"forth\", parallel_iterations=10")
        .replace("BACK", "frame_name=\"back\", parallel_iterations=10");
    let partition = Partition::of_text(&text, &device.device)?;
    let (mut given, mut logs, mut random) = (vec![], vec![], Random(3));
    for _ in 0..5 {
        let feeds = [("x", random.tensor(DType::Float, &[3, 2])?), ("limit", Tensor::from(3i32))];
        given.extend(partition.step(&feeds, &["w/exit", "all"])?);
        logs.push(device.driver.log());
    }
    assert_eq!(device.driver.races(), Vec::<String>::new());
    Ok((given, logs))
}

#[test]
fn loops_over_lists_agree_with_the_cpu_without_copies() -> Fallible {
    let gpu = |graphs| {
        let options = GpuOptions { memory_fraction: 1.0, graphs, ..GpuOptions::default() };
        Gpu::with_driver(RecordingDriver::new(1 << 20).executing_ptx(), 0, &options)
    };
    let ((alone, logs), (in_graphs, graph_logs)) = (run(&gpu(false)?)?, run(&gpu(true)?)?);
    let copies = |way: &str| logs[4].iter().filter(|line| line.starts_with(way)).count();
    // The rows are uploaded in one copy, and the two results are downloaded.
    assert_eq!((copies("copy in"), copies("copy out")), (1, 2), "{:#?}", logs[4]);
    // Each iteration launches a CUDA graph, although the list holds the graph's outputs.
    let launched = graph_logs[4].iter().filter(|line| line.starts_with("graph of")).count();
    assert!(launched >= 3, "{:#?}", graph_logs[4]);
    assert_eq!(alone, in_graphs);
    let text = LOOPS.replace("FORTH", "frame_name=\"forth\"").replace("BACK", "frame_name=\"back\"");
    let cpu = Partition::of_text(&text, &super::comparison::cpu())?;
    let mut random = Random(3);
    for given in alone.chunks(2) {
        let feeds = [("x", random.tensor(DType::Float, &[3, 2])?), ("limit", Tensor::from(3i32))];
        assert_eq!(cpu.step(&feeds, &["w/exit", "all"])?, given);
    }
    Ok(())
}

/// Returns a tensor of variants: a list of floats, a list of integers that stay on the host, an empty list, no
/// value, nested lists, and optionals.
fn variants() -> Fallible<Tensor> {
    let mut random = Random(4);
    let mut list = |dtype, values: usize| -> Fallible<TensorList> {
        let mut elements = vec![None];
        for size in 0..values {
            elements.push(Some(random.tensor(dtype, &[size, 2])?));
        }
        let mut list = TensorList::of(dtype, PartialShape::of_dims([None, Some(2)]), elements)?;
        list.max_num_elements = 9;
        Ok(list)
    };
    let (floats, integers, empty) = (list(DType::Float, 3)?, list(DType::Int32, 2)?, list(DType::Half, 0)?);
    let inner = vec![Some(Tensor::variant(floats.clone())), None, Some(Tensor::variant(integers.clone()))];
    let nested = TensorList::of(DType::Variant, PartialShape::unknown(), inner)?;
    let some = Optional::of(vec![Tensor::try_from([1.5f32])?, Tensor::from(7i32), Tensor::from("text")])?;
    let all = vec![
        Variant::new(floats),
        Variant::new(integers),
        Variant::new(empty),
        Variant::EMPTY,
        Variant::new(nested),
        Variant::new(some),
        Variant::new(Optional::<Tensor>::NONE),
    ];
    let count = all.len();
    Ok(Tensor::variants(all, Shape::new(&[count])?)?)
}

#[test]
fn variant_contents_are_copied_to_a_gpu_and_back() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let all = variants()?;
    let there = upload(&gpu.device, all.clone())?;
    // Five uploads: the two nonempty elements of the list of floats, of its copy in the nested list, and the
    // float of the optional.
    let copies = gpu.driver.log().iter().filter(|line| line.starts_with("copy in")).count();
    assert_eq!(copies, 5);
    let back = download(&gpu.device, there.clone())?;
    assert_eq!(difference(&back, &all)?, None);
    drop(there);
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

#[test]
fn lists_are_copied_between_gpus() -> Fallible {
    for is_reachable in [true, false] {
        let gpus = Gpu::group(1 << 20, &[is_reachable])?;
        let all = variants()?;
        let here = upload(&gpus[0].device, all.clone())?;
        let Value::Host(held) = &here else { return Err("variants are on the host".into()) };
        let there = upload(&gpus[1].device, held.clone())?;
        let copies = |way: &str| gpus[0].driver.log().iter().filter(|line| line.contains(way)).count();
        assert_eq!(copies("to GPU 1"), if is_reachable { 5 } else { 0 });
        drop(here);
        assert_eq!(difference(&download(&gpus[1].device, there)?, &all)?, None);
        for gpu in &gpus {
            assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
        }
    }
    Ok(())
}

#[test]
fn failed_list_upload_frees_its_memory() -> Fallible {
    let gpu = Gpu::new(1 << 12)?;
    let elements = (0..4).map(|_| Ok(Some(Tensor::zeros(DType::Float, Shape::new(&[400])?)?)));
    let list = TensorList::of(DType::Float, PartialShape::unknown(), elements.collect::<Fallible<_>>()?)?;
    let error = upload(&gpu.device, Tensor::variant(list)).err().ok_or("it fits")?.to_string();
    assert!(error.contains("OOM"), "{error}");
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

/// Number of levels of nested lists; each list contains the list of the next level twice.
const LEVELS: usize = 20;

#[test]
fn shared_list_elements_are_copied_once() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let mut tensor = Tensor::try_from([1.0f32, 2.0])?;
    let mut dtype = DType::Float;
    for _ in 0..LEVELS {
        let both = vec![Some(tensor.clone()), Some(tensor)];
        tensor = Tensor::variant(TensorList::of(dtype, PartialShape::unknown(), both)?);
        dtype = DType::Variant;
    }
    let there = upload(&gpu.device, tensor)?;
    assert_eq!(gpu.driver.log().iter().filter(|line| line.starts_with("copy in")).count(), 2);
    let back = download(&gpu.device, there)?;
    assert_eq!(gpu.driver.used(), 0);
    let mut inner = back;
    for _ in 0..LEVELS {
        let list = inner.as_variants()?[0].expect::<TensorList>("a list")?;
        let [Some(first), Some(_)] = list.elements() else { return Err("there are not two".into()) };
        inner = first.clone();
    }
    assert_eq!(inner, Tensor::try_from([1.0f32, 2.0])?);
    Ok(())
}

#[test]
fn errors_have_the_cpu_messages() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let cpu = super::comparison::cpu();
    let any = || Tensor::scalar(-1i32);
    let list =
        |elements| TensorList::of(DType::Float, PartialShape::from([Some(2)]), elements).map(Tensor::variant);
    let (one, none) = (list(vec![Some(Tensor::try_from([1.0f32, 2.0])?)])?, list(vec![])?);
    for (op, inputs, words) in [
        (
            "TensorListGetItem",
            vec![one.clone(), 3i32.into(), any()],
            "Trying to access element 3 in a list with 1",
        ),
        ("TensorListPopBack", vec![none, any()], "Trying to pop from an empty list."),
        (
            "TensorListPushBack",
            vec![one.clone(), Tensor::try_from([1.0f32])?],
            "incompatible shape to a list",
        ),
        ("TensorListGather", vec![one, Tensor::try_from([1i32])?, any()], "list only has 1 elements"),
    ] {
        let op = graph::ops::lookup(op).ok_or_else(|| format!("no op {op}"))?;
        let node = Node::new("n", op).with_attr("element_dtype", DType::Float);
        for device in [&gpu.device, &cpu] {
            let def = device.find_kernel(&node).ok_or("no kernel")?;
            let refused =
                node_runner::run(device, def, &node, &inputs)?.err().ok_or("it is not refused")?.to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
    Ok(())
}
