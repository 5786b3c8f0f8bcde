//! Fusion of nodes on a GPU: the graphs after fusion, and the work that a fused node enqueues.

use super::Fallible;
use super::cases::Random;
use super::partition::{Partition, graph_from_text};
use super::software::gpu::Gpu;
use super::software::recording::RecordingDriver;
use super::training::run;
use device::Device;
use device::Value;
use device::gpu_options::GpuOptions;
use executor::fuse;
use expect_test::{Expect, expect};
use graph::{AttrList, AttrValue, DType, Graph, Node, Shape, Tensor};
use kernels::testing::{lone_device, run_node_on};

fn texts(texts: &[&'static str]) -> AttrValue {
    AttrValue::List(AttrList::Str(texts.iter().map(|text| text.as_bytes().into()).collect()))
}

fn node(op: &str) -> Fallible<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| format!("no op {op}"))?;
    Ok(Node::new("last", op).with_attr("T", DType::Float))
}

fn chain(inputs: i64, ops: &[&'static str], operands: &[i64]) -> Fallible<Node> {
    let node = node("_FusedElementwise")?.with_attr("N", inputs).with_attr("operands", operands.to_vec());
    Ok(node.with_attr("ops", texts(ops)).with_attr("names", texts(&["first", "second", "last"][..ops.len()])))
}

fn product(then: &[&'static str], biases: i64) -> Fallible<Node> {
    Ok(node("_FusedMatMul")?.with_attr("num_args", biases).with_attr("fused_ops", texts(then)))
}

/// Runs a node on inputs of these shapes, filled with zeros; returns the output's shape and the log of enqueued
/// work, without waits and frees.
fn enqueued(gpu: &Gpu, node: &Node, shapes: &[&[usize]]) -> Fallible<(Shape, Vec<String>)> {
    let mut inputs = Vec::new();
    for dims in shapes {
        inputs.push(gpu.upload(Tensor::zeros(DType::Float, Shape::new(dims)?)?)?);
    }
    gpu.driver.log();
    let output = run_node_on(&gpu.device, node, inputs)?.remove(0);
    let Value::Device(tensor) = output else { return Err("the output is not on the GPU".into()) };
    let mut log = gpu.driver.log();
    log.retain(|line| !line.starts_with("wait") && !line.starts_with("free"));
    drop(tensor.memory);
    gpu.driver.log();
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok((tensor.shape, log))
}

fn check(node: &Node, shapes: &[&[usize]], dims: &[usize], expected: &[&str]) -> Fallible {
    let (shape, log) = enqueued(&Gpu::new(1 << 20)?, node, shapes)?;
    assert_eq!(shape, Shape::new(dims)?);
    assert_eq!(log, expected);
    Ok(())
}

#[test]
fn chain_is_one_kernel_and_reuses_operand_memory() -> Fallible {
    let three = chain(2, &["AddV2", "Relu", "Mul"], &[0, 1, 2, 3, 1])?;
    check(&three, &[&[3, 5], &[3, 5]], &[3, 5], &["chain<Chain, float, false> on 0"])?;
    check(&three, &[&[3, 5], &[]], &[3, 5], &["chain<Chain, float, false> on 0"])?;
    check(&three, &[&[5], &[3, 5]], &[3, 5], &["chain<Chain, float, true> on 0"])?;
    let outer = ["allocate 60 on 0", "chain<Chain, float, true> on 0"];
    check(&three, &[&[3, 1], &[1, 5]], &[3, 5], &outer)?;
    check(&three, &[&[0, 3], &[3]], &[0, 3], &[])
}

#[test]
fn broadcast_values_need_no_separate_kernel() -> Fallible {
    let exp = chain(2, &["Exp", "AddV2"], &[0, 2, 1])?;
    check(&exp, &[&[5], &[3, 5]], &[3, 5], &["chain<Chain, float, true> on 0"])
}

#[test]
fn shared_operand_memory_is_not_overwritten() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let x = gpu.upload(Tensor::try_from([1.0f32, 2.0])?)?;
    let twice = chain(2, &["Neg", "AddV2"], &[0, 2, 1])?;
    gpu.driver.log();
    let y = run_node_on(&gpu.device, &twice, vec![x.clone(), x.clone()])?;
    assert!(gpu.driver.log().contains(&"allocate 8 on 0".to_owned()));
    drop((x, y));
    assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    Ok(())
}

#[test]
fn unfusable_shapes_run_as_separate_kernels() -> Fallible {
    // The shapes differ but have equal numbers of elements: `TanhGrad` accepts them, a chain does not.
    let gradient = chain(2, &["TanhGrad", "Neg"], &[0, 1, 2])?;
    let apart = ["zip<TanhGrad, float, float> on 0", "map<Neg, float, float> on 0"];
    check(&gradient, &[&[6], &[2, 3]], &[6], &apart)?;
    // The operands broadcast in more patterns than the kernel of a chain supports.
    let five = node("_FusedElementwise")?
        .with_attr("N", 6i64)
        .with_attr("ops", texts(&["AddV2"; 5]))
        .with_attr("names", texts(&["last"; 5]))
        .with_attr("operands", vec![0i64, 1, 6, 2, 7, 3, 8, 4, 9, 5]);
    let shapes: [&[usize]; 6] = [&[2, 2, 2], &[2], &[2, 1], &[2, 1, 1], &[1, 2, 2], &[2, 1, 2]];
    check(&five, &shapes, &[2, 2, 2], &["zip_axes<AddV2, float, float> on 0"; 5])
}

#[test]
fn incompatible_shapes_are_an_error_of_their_op() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let error = enqueued(&gpu, &chain(2, &["Neg", "AddV2"], &[0, 2, 1])?, &[&[2], &[3]]).err();
    let message = error.ok_or("no error")?.to_string();
    assert!(message.starts_with("Incompatible shapes: [2] vs. [3]"), "{message}");
    assert!(message.contains("second"), "{message}");
    let unknown = run_node_on(&gpu.device, &chain(1, &["Neg", "Shape"], &[0, 1])?, vec![]).err();
    assert!(unknown.is_some_and(|error| error.code() == graph::Code::Unimplemented));
    Ok(())
}

const FACTORS_AND_BIAS: &[&[usize]] = &[&[2, 4], &[4, 3], &[3]];

#[test]
fn product_with_bias_and_relu_is_one_call() -> Fallible {
    let of = |then: &[&'static str], rest: &[&str]| {
        let node = product(then, 1)?;
        check(&node, FACTORS_AND_BIAS, &[2, 3], &[&["allocate 24 on 0"], rest].concat())
    };
    let start = "product 2 3 4 x 1 [false, false] [8, 12, 6]";
    of(&["BiasAdd"], &[&format!("{start} + bias on 0")])?;
    of(&["BiasAdd", "Relu"], &[&format!("{start} + bias > relu on 0")])?;
    of(&["BiasAdd", "Tanh"], &[&format!("{start} + bias on 0"), "map<Tanh, float, float> on 0"])?;
    let relu = [&format!("{start} > relu on 0")[..]];
    check(
        &product(&["Relu"], 0)?,
        &FACTORS_AND_BIAS[..2],
        &[2, 3],
        &[&["allocate 24 on 0"], &relu[..]].concat(),
    )
}

#[test]
fn unsupported_epilogue_ops_run_as_kernels_in_place() -> Fallible {
    let options = GpuOptions { memory_fraction: 1.0, ..GpuOptions::default() };
    let gpu = Gpu::with_driver(RecordingDriver::new(1 << 20).without_epilogues(), 0, &options)?;
    let (_, log) = enqueued(&gpu, &product(&["BiasAdd", "Relu"], 1)?, FACTORS_AND_BIAS)?;
    let product_ = "product 2 3 4 x 1 [false, false] [8, 12, 6] on 0";
    assert_eq!(log, ["allocate 24 on 0", product_, "add_bias<float> on 0", "map<Relu, float, float> on 0"]);
    // A product of matrices without elements makes no call, but its bias and activation run.
    let (shape, log) = enqueued(&gpu, &product(&["BiasAdd", "Relu"], 1)?, &[&[2, 0], &[0, 3], &[3]])?;
    assert_eq!(shape, Shape::new(&[2, 3])?);
    assert_eq!(log[log.len() - 2..], ["add_bias<float> on 0", "map<Relu, float, float> on 0"]);
    Ok(())
}

#[test]
fn incompatible_bias_is_an_error_of_the_bias_op() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let error = enqueued(&gpu, &product(&["BiasAdd"], 1)?, &[&[2, 4], &[4, 3], &[2]]).err();
    let message = error.ok_or("no error")?.to_string();
    assert!(message.starts_with("Must provide as many biases as the last dimension"), "{message}");
    assert!(run_node_on(&gpu.device, &product(&["BiasAdd"], 0)?, vec![]).is_err());
    Ok(())
}

fn check_fused(text: &str, expected: Expect) -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let fused = fuse(Graph::from_text(text)?, &gpu.device)?;
    expected.assert_eq(&fused.to_text());
    assert_eq!(gpu.driver.log(), Vec::<String>::new(), "fusing opens no GPU");
    Ok(())
}

#[test]
fn products_are_fused_before_chains_and_host_ops_are_not_fused() -> Fallible {
    check_fused(
        r#"
        x = Const[dtype=float, value=float<2,2>{1.0, 2.0, 3.0, 4.0}]
        b = Const[dtype=float, value=float<2>{1.0, 2.0}]
        product = MatMul[T=float](x, x)
        biased = BiasAdd[T=float](product, b)
        active = Relu[T=float](biased)
        scaled = Mul[T=float](active, x)
        moved = AddV2[T=float](scaled, b)
        i = Const[dtype=int32, value=int32<2>{1, 2}]
        j = Neg[T=int32](i)
        k = AddV2[T=int32](j, i)
        "#,
        expect![[r#"
            x = Const[dtype=float, value=float<2,2>{1.0, 2.0, 3.0, 4.0}]
            b = Const[dtype=float, value=float<2>{1.0, 2.0}]
            active = _FusedMatMul[T=float, fused_ops=["BiasAdd", "Relu"], num_args=1, transpose_a=false, transpose_b=false](x, x, b)
            moved = _FusedElementwise[N=3, T=float, names=["scaled", "moved"], operands=[0, 1, 3, 2], ops=["Mul", "AddV2"]](active, x, b)
            i = Const[dtype=int32, value=int32<2>{1, 2}]
            j = Neg[T=int32](i)
            k = AddV2[T=int32](j, i)
        "#]],
    )
}

#[test]
fn fused_partition_runs_as_two_calls_without_races() -> Fallible {
    let text = r#"
        x = Const[dtype=float, value=float<2,2>{1.0, 2.0, 3.0, 4.0}]
        b = Const[dtype=float, value=float<2>{1.0, 2.0}]
        product = MatMul[T=float](x, x)
        biased = BiasAdd[T=float](product, b)
        active = Relu[T=float](biased)
        scaled = Mul[T=float](active, x)
        moved = AddV2[T=float](scaled, b)
        "#;
    let gpu = Gpu::new(1 << 20)?;
    run(&gpu, &fuse(Graph::from_text(text)?, &gpu.device)?, 2)?;
    let mut log = gpu.driver.log();
    log.retain(|line| line.starts_with("product") || line.contains('<'));
    let step =
        ["product 2 2 2 x 1 [false, false] [4, 4, 4] + bias > relu on 0", "chain<Chain, float, true> on 0"];
    assert_eq!(log, [step, step].concat());
    assert_eq!(gpu.driver.races(), Vec::<String>::new());
    Ok(())
}

fn norm(op: &str, activation: &'static str) -> Fallible<Node> {
    Ok(node(op)?.with_attr("U", DType::Float).with_attr("activation_mode", activation))
}

#[test]
fn normalization_with_sum_and_activation_is_one_pass() -> Fallible {
    let passes = |op: &str, sides: i64, shapes: &[&[usize]]| -> Fallible<Vec<String>> {
        let node = norm(op, "Relu")?.with_attr("num_side_inputs", sides).with_attr("is_training", false);
        let (shape, mut log) = enqueued(&Gpu::new(1 << 20)?, &node, shapes)?;
        assert_eq!(shape, Shape::new(&[2, 3, 3, 4])?);
        log.retain(|line| line.contains('<'));
        Ok(log)
    };
    let (images, channels): (&[usize], &[usize]) = (&[2, 3, 3, 4], &[4]);
    let vectors = [images, channels, channels, channels, channels];
    let ex = "_FusedBatchNormEx";
    let whole = ["normalize<float, Relu> on 0"];
    assert_eq!(passes(ex, 0, &vectors)?, whole);
    assert_eq!(passes(ex, 1, &[&vectors[..], &[images]].concat())?, whole);
    let apart = [
        "normalize<float, Identity> on 0",
        "zip_axes<AddV2, float, float> on 0",
        "map<Relu, float, float> on 0",
    ];
    assert_eq!(passes(ex, 1, &[&vectors[..], &[channels]].concat())?, apart);
    Ok(())
}

/// The end of a residual network's block, forward and backward, on images `x`.
const BLOCK: &str = "
    x <- T
    scale <- float
    offset <- float
    slope <- T
    norm = FusedBatchNormV3[T=T, U=float, epsilon=0.1](x, scale, offset, scale, scale)
    active = Relu[T=T](norm)
    more = Mul[T=T](active, active)
    second = FusedBatchNormV3[T=T, U=float, exponential_avg_factor=0.1](more, scale, offset, scale, scale)
    sum = AddV2[T=T](second, x)
    end = Relu6[T=T](sum)
    back_end = Relu6Grad[T=T](slope, end)
    back_second = FusedBatchNormGradV3[T=T, U=float](back_end, more, scale, second:3, second:4, second:5)
    back_active = Mul[T=T](back_second, active)
    back_norm = ReluGrad[T=T](back_active, active)
    back_x = FusedBatchNormGradV3[T=T, U=float, epsilon=0.1](back_norm, x, scale, norm:3, norm:4, norm:5)
    all = AddN[T=T, N=2](back_x, back_end)
    through = ReluGrad[T=T](all, active)
    end -> T
    through -> T
    second:1 -> float
    second:2 -> float
    back_second:1 -> float
    back_x:1 -> float
    back_x:2 -> float
";

#[test]
fn fused_residual_block_is_bitwise_equal_with_fewer_passes() -> Fallible {
    let fetches = ["end", "through", "second_1", "second_2", "back_second_1", "back_x_1", "back_x_2"];
    let run = |dtype: DType, fuses: bool| -> Fallible<(Vec<Tensor>, usize)> {
        let graph = graph_from_text(
            &BLOCK.replace("=T", &format!("={dtype}")).replace(" T\n", &format!(" {dtype}\n")),
        )?;
        let options = GpuOptions { graphs: false, memory_fraction: 1.0, ..GpuOptions::default() };
        let gpu = Gpu::with_driver(RecordingDriver::new(1 << 20).executing_ptx(), 0, &options)?;
        let partition = Partition::new(&if fuses { fuse(graph, &gpu.device)? } else { graph }, &gpu.device)?;
        let mut random = Random(1);
        let images = |random: &mut Random| random.tensor(dtype, &[2, 3, 3, 4]);
        let feeds = [
            ("x", images(&mut random)?),
            ("scale", random.tensor(DType::Float, &[4])?),
            ("offset", random.tensor(DType::Float, &[4])?),
            ("slope", images(&mut random)?),
        ];
        let given = partition.step(&feeds, &fetches)?;
        let passes = gpu.driver.log().iter().filter(|line| line.contains('<')).count();
        assert_eq!(gpu.driver.races(), Vec::<String>::new());
        Ok((given, passes))
    };
    for dtype in [DType::Float, DType::Half, DType::BFloat16] {
        let ((apart, more), (whole, fewer)) = (run(dtype, false)?, run(dtype, true)?);
        assert_eq!(whole, apart, "{dtype}");
        assert_eq!((more, fewer), (17, 12), "{dtype}");
    }
    Ok(())
}

/// Checks for each op that the CPU and the GPU both fuse it into a chain, or neither does.
#[test]
fn cpu_and_gpu_chains_accept_the_same_ops() -> Fallible {
    let gpu = Gpu::new(1 << 20)?;
    let cpu = lone_device();
    let mut count = 0;
    for op in graph::ops::all() {
        for inputs in ["x", "x, x"] {
            let text = format!(
                "x = Placeholder[dtype=float]\ny = {}[T=float]({inputs})\nz = Neg[T=float](y)\n",
                op.name()
            );
            let Ok(graph) = Graph::from_text(&text) else { continue };
            let is_fused = |device: &Device| -> Fallible<bool> {
                Ok(fuse(graph.clone(), device)?.to_text().contains("_FusedElementwise"))
            };
            let (on_cpu, on_gpu) = (is_fused(&cpu)?, is_fused(&gpu.device)?);
            assert_eq!(on_cpu, on_gpu, "{}", op.name());
            count += usize::from(on_gpu);
        }
    }
    assert!(count > 40, "only {count} ops");
    Ok(())
}
