//! Compares all ops of every optimizer with TensorFlow's numbers: three steps on a variable of shape `[3, 2]`.

use super::*;
use crate::numeric::widen::Float;
use crate::testing::{lone_device, run_node_on};
use device::Device;
use device::value::Value;
use graph::{Code, Node, PartialShape};
use half::{bf16, f16};

/// One optimizer with its settings, and the results that TensorFlow 2.21 gives for [`VARIABLE`] and the slots.
struct Case {
    optimizer: &'static str,
    flag: Option<(&'static str, bool)>,
    /// The initial value of each slot.
    slots: &'static [f32],
    /// The scalars, in the order of the op's inputs.
    scalars: &'static [f32],
    dense: Option<&'static [[f32; 6]]>,
    /// The results of the sparse ops, whose gradient's rows belong to [`INDICES`].
    sparse: Option<&'static [[f32; 6]]>,
}

const VARIABLE: [f32; 6] = [1.0, -2.0, 0.5, 3.0, -0.25, 0.75];
const INDICES: [i32; 3] = [2, 0, 2];
const GRADIENTS: [[f32; 6]; 3] =
    [[0.1, -0.2, 0.3, 0.0, -0.5, 0.6], [0.2, 0.1, -0.3, 0.4, 0.0, -0.1], [-0.4, 0.3, 0.2, -0.1, 0.5, 0.05]];

fn shape() -> Result<Shape> {
    Ok(Shape::new(&[3, 2])?)
}

/// Returns `values` as a tensor of the floating-point type `T`.
fn cast<T: Float>(values: &[f32], shape: Shape) -> Result<Tensor>
where
    T::Wide: From<f32>,
{
    let values: Vec<T> = values.iter().map(|&v| T::of_wide(v.into())).collect();
    Ok(Tensor::from_slice(&values, shape)?)
}

/// The variable and the slots of one op under test, as reference variables or as resource variables.
struct OptimizerFixture {
    device: Arc<Device>,
    inputs: Vec<Value>,
    variables: Vec<Arc<Variable>>,
}

impl OptimizerFixture {
    fn new(values: Vec<Tensor>, by_handle: bool) -> Result<OptimizerFixture> {
        let device: Arc<Device> = Arc::new(lone_device());
        let (mut inputs, mut variables) = (Vec::new(), Vec::new());
        for (i, value) in values.into_iter().enumerate() {
            let name = format!("v{i}");
            let make = || {
                let variable = Variable::new(&*name, value.dtype(), PartialShape::from(value.shape()));
                *variable.lock() = Some(value.clone());
                Ok(variable)
            };
            let variable = device.resources().lookup_or_create("", &name, make)?;
            inputs.push(if by_handle {
                let handle = node("VarHandleOp")?
                    .with_attr("dtype", value.dtype())
                    .with_attr("shape", PartialShape::from(value.shape()))
                    .with_attr("shared_name", &*name);
                run_node_on(&device, &handle, Vec::new())?.swap_remove(0)
            } else {
                Value::Ref(variable.clone())
            });
            variables.push(variable);
        }
        Ok(OptimizerFixture { device, inputs, variables })
    }

    /// Runs an op on the variables with the inputs `grad` and `indices`, if the op has them, and `scalars`.
    fn run(&self, node: &Node, grad: &Tensor, indices: &Tensor, scalars: &[Tensor]) -> Result<Vec<Value>> {
        let mut inputs = self.inputs.clone();
        let mut scalars = scalars.iter();
        for arg in &node.op.inputs[inputs.len()..] {
            inputs.push(Value::Host(match arg.name {
                "grad" | "delta" => grad.clone(),
                "indices" => indices.clone(),
                _ => scalars.next().cloned().ok_or_else(|| Error::internal("too few scalars"))?,
            }));
        }
        assert!(scalars.next().is_none());
        run_node_on(&self.device, node, inputs)
    }
}

fn node(op: &str) -> Result<Node> {
    Ok(Node::new("test", graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")))?))
}

/// Runs three steps of one op, and returns the values of the variable and of each slot.
fn three_steps<T: Float>(case: &Case, op: &str) -> Result<Vec<Vec<f64>>>
where
    T::Wide: From<f32>,
{
    let mut values = vec![cast::<T>(&VARIABLE, shape()?)?];
    for &slot in case.slots {
        values.push(cast::<T>(&[slot; 6], shape()?)?);
    }
    let bench = OptimizerFixture::new(values, op.starts_with("Resource"))?;
    let mut node = node(op)?.with_attr("T", T::DTYPE);
    if let Some((flag, on)) = case.flag {
        node.attrs.set(flag, on);
    }
    if op.contains("Sparse") {
        node.attrs.set("Tindices", DType::Int32);
    }
    let scalars = node.op.inputs.iter().skip(bench.inputs.len());
    let scalars = scalars.filter(|a| !["grad", "delta", "indices"].contains(&a.name)).zip(case.scalars);
    let scalars = scalars
        .map(|(arg, &value)| match arg.name {
            "global_step" => Ok(Tensor::from(value as i64)),
            _ => cast::<T>(&[value], Shape::scalar()),
        })
        .collect::<Result<Vec<_>>>()?;
    let indices = Tensor::vector(&INDICES)?;
    for grad in &GRADIENTS {
        let outputs = bench.run(&node, &cast::<T>(grad, shape()?)?, &indices, &scalars)?;
        assert_eq!(outputs.len(), usize::from(!op.starts_with("Resource")));
    }
    let read = |v: &Arc<Variable>| {
        let value = v.value()?;
        Ok(value.values::<T>()?.iter().map(|v| num_traits::cast(v.to_wide()).unwrap_or(f64::NAN)).collect())
    };
    bench.variables.iter().map(read).collect()
}

fn check<T: Float>(tolerance: f64) -> Result<()>
where
    T::Wide: From<f32>,
{
    let mut ops = 0;
    for case in CASES {
        for (form, expected) in [("Apply", case.dense), ("SparseApply", case.sparse)] {
            let Some(expected) = expected else { continue };
            for prefix in ["", "Resource"] {
                let op = format!("{prefix}{form}{}", case.optimizer);
                if graph::ops::lookup(&op).is_none() {
                    continue;
                }
                ops += 1;
                let got = three_steps::<T>(case, &op)?;
                assert_eq!(got.len(), expected.len(), "{op}");
                for (got, expected) in got.iter().zip(expected) {
                    for (g, e) in got.iter().zip(expected) {
                        let e = f64::from(*e);
                        assert!(
                            (g - e).abs() <= tolerance * e.abs().max(1.0),
                            "{op} {:?} {:?}: {got:?} is not {expected:?}",
                            case.flag,
                            case.scalars
                        );
                    }
                }
            }
        }
    }
    assert!(ops >= KERNELS.len());
    Ok(())
}

#[test]
fn optimizers_give_tensorflows_numbers() -> Result<()> {
    check::<f32>(1e-6)
}

#[test]
fn other_types_agree_with_float() -> Result<()> {
    check::<f64>(1e-5)?;
    check::<f16>(0.02)?;
    check::<bf16>(0.2)
}

#[test]
fn every_op_has_a_case() {
    for kernel in KERNELS {
        let name = kernel.op.trim_start_matches("Resource");
        let covered = CASES.iter().any(|c| match name.strip_prefix("SparseApply") {
            Some(optimizer) => c.optimizer == optimizer && c.sparse.is_some(),
            None => name.strip_prefix("Apply") == Some(c.optimizer) && c.dense.is_some(),
        });
        assert!(covered, "{}", kernel.op);
    }
}

/// Elements are independent: a long gradient, processed in blocks and on several threads, gives the same results as a
/// short one.
#[test]
fn long_gradients_give_the_results_of_short_ones() -> Result<()> {
    const REPEATS: usize = 50_001;
    let attrs = |op: &str| Ok::<_, Error>(node(op)?.with_attr("T", DType::Float));
    let scalars: Vec<Tensor> =
        [0.9f32, 0.999, 0.01, 0.9, 0.999, 1e-3].into_iter().map(Tensor::from).collect();
    let run = |repeats: usize| -> Result<Vec<Tensor>> {
        let long = |v: &[f32]| Ok::<_, Error>(Tensor::vector(&v.repeat(repeats))?);
        let bench = OptimizerFixture::new(vec![long(&VARIABLE)?, long(&[0.1; 6])?, long(&[0.2; 6])?], false)?;
        for grad in &GRADIENTS {
            bench.run(&attrs("ApplyAdam")?, &long(grad)?, &long(&[])?, &scalars)?;
        }
        bench.variables.iter().map(|v| v.value()).collect()
    };
    for (long, short) in run(REPEATS)?.iter().zip(run(1)?) {
        let short = short.values::<f32>()?;
        assert!(long.values::<f32>()?.chunks(6).all(|chunk| chunk == short));
    }
    Ok(())
}

#[test]
fn many_wide_rows_are_updated_in_order() -> Result<()> {
    // Each row occurs three times; with momentum, the order of its gradients affects the result.
    const WIDTH: usize = 1000;
    let wide = |rows: usize| Shape::new(&[rows, WIDTH]);
    let run = |rows: usize| -> Result<Tensor> {
        let zeros = || Tensor::zeros(DType::Float, wide(rows)?);
        let bench = OptimizerFixture::new(vec![zeros()?, zeros()?], true)?;
        let node = node("ResourceSparseApplyMomentum")?
            .with_attr("T", DType::Float)
            .with_attr("Tindices", DType::Int64);
        let indices: Vec<i64> = (0..3).flat_map(|_| 0..rows as i64).collect();
        let grads: Vec<f32> = (0..3).flat_map(|turn| vec![[1.0, -3.0, 0.5][turn]; rows * WIDTH]).collect();
        let grads = Tensor::from_slice(&grads, wide(3 * rows)?)?;
        bench.run(&node, &grads, &Tensor::vector(&indices)?, &[0.1f32.into(), 0.9f32.into()])?;
        bench.variables[0].value()
    };
    let (few, many) = (run(1)?, run(200)?);
    let expected = few.values::<f32>()?[0];
    assert!(many.values::<f32>()?.iter().all(|&v| v == expected));
    Ok(())
}

#[test]
fn steps_are_in_place_and_do_not_change_snapshots() -> Result<()> {
    let bench = OptimizerFixture::new(vec![Tensor::vector(&VARIABLE)?], false)?;
    let step = node("ApplyGradientDescent")?.with_attr("T", DType::Float);
    let grad = Tensor::vector(&[1.0f32; 6])?;
    let at = bench.variables[0].value()?.bytes()?.as_ptr();
    bench.run(&step, &grad, &grad, &[0.5f32.into()])?;
    let snapshot = bench.variables[0].value()?;
    assert_eq!(snapshot.bytes()?.as_ptr(), at);
    bench.run(&step, &grad, &grad, &[0.5f32.into()])?;
    assert_eq!(snapshot.values::<f32>()?[0], 0.5);
    assert_eq!(bench.variables[0].value()?.values::<f32>()?[0], 0.0);
    Ok(())
}

#[test]
fn a_gradient_may_be_the_variable_itself() -> Result<()> {
    let bench = OptimizerFixture::new(vec![Tensor::vector(&[2.0f32, 4.0])?], true)?;
    let own = bench.variables[0].value()?;
    let step = node("ResourceApplyGradientDescent")?.with_attr("T", DType::Float);
    bench.run(&step, &own, &own, &[0.5f32.into()])?;
    assert_eq!(bench.variables[0].value()?.values::<f32>()?, [1.0, 2.0]);
    Ok(())
}

#[test]
fn errors_name_mismatched_inputs() -> Result<()> {
    let bench = OptimizerFixture::new(vec![Tensor::zeros(DType::Float, shape()?)?; 2], false)?;
    let dense = node("ApplyMomentum")?.with_attr("T", DType::Float);
    let sparse =
        node("SparseApplyMomentum")?.with_attr("T", DType::Float).with_attr("Tindices", DType::Int64);
    let zeros = |dims: &[usize]| Tensor::zeros(DType::Float, Shape::new(dims)?);
    let scalars = [Tensor::from(0.1f32), Tensor::from(0.9f32)];
    let vectors = [Tensor::try_from([0.1f32])?, Tensor::from(0.9f32)];
    for (node, grad, indices, scalars, message) in [
        (&dense, &[2, 3][..], &[0][..], &scalars, "var and grad do not have the same shape[3,2] [2,3]"),
        (&dense, &[3, 2], &[0], &vectors, "lr is not a scalar: [1]"),
        (&sparse, &[1, 2], &[7], &scalars, "Index 7 at offset 0 in indices is out of range"),
        (&sparse, &[2, 2], &[0, -1], &scalars, "Index -1 at offset 1 in indices is out of range"),
        (&sparse, &[1, 3], &[0], &scalars, "var and grad must match in dimension 1"),
        (
            &sparse,
            &[1, 2],
            &[0, 1],
            &scalars,
            "grad must be the same size as indices in the first dimension.",
        ),
    ] {
        let error = bench.run(node, &zeros(grad)?, &Tensor::vector::<i64>(indices)?, scalars).err();
        assert_eq!(error.map(|e| (e.code(), e.to_string())), Some((Code::InvalidArgument, message.into())));
    }
    // The gradient has rank one, but the variable has rank two.
    assert!(bench.run(&sparse, &zeros(&[1])?, &Tensor::vector(&[0i64])?, &scalars).is_err());
    // A gradient without rows is valid.
    bench.run(&sparse, &zeros(&[0, 2])?, &Tensor::vector::<i64>(&[])?, &scalars)?;

    bench.variables[1].lock().take();
    let error = bench.run(&dense, &zeros(&[3, 2])?, &zeros(&[1])?, &scalars).err();
    let message = "Attempting to use uninitialized value v1".to_owned();
    assert_eq!(error.map(|e| (e.code(), e.to_string())), Some((Code::FailedPrecondition, message)));
    Ok(())
}

#[test]
fn sparse_ftrl_refuses_invalid_settings() -> Result<()> {
    let bench = OptimizerFixture::new(vec![Tensor::vector(&[1.0f32])?; 3], false)?;
    let step = node("SparseApplyFtrl")?.with_attr("T", DType::Float).with_attr("Tindices", DType::Int64);
    let (one, first) = (Tensor::vector(&[1.0f32])?, Tensor::vector(&[0i64])?);
    for settings in
        [[0.0f32, 0.0, 0.0, -0.5], [0.1, -1.0, 0.0, -0.5], [0.1, 0.0, -1.0, -0.5], [0.1, 0.0, 0.0, 0.5]]
    {
        let scalars: Vec<Tensor> = settings.into_iter().map(Tensor::from).collect();
        assert_eq!(
            bench.run(&step, &one, &first, &scalars).err().map(|e| e.code()),
            Some(Code::InvalidArgument)
        );
    }
    Ok(())
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case {
        optimizer: "GradientDescent", flag: None, slots: &[], scalars: &[0.1],
        dense: Some(&[
            [1.01, -2.02, 0.48, 2.97, -0.25, 0.695],
        ]),
        sparse: None,
    },
    Case {
        optimizer: "Momentum", flag: Some(("use_nesterov", false)), slots: &[0.2], scalars: &[0.1, 0.9],
        dense: Some(&[
            [0.92612004, -2.04358, 0.40692, 2.88522, -0.21328, 0.55262],
            [0.006799996, 0.3738, 0.3188, 0.40579996, 0.24080002, 0.5918],
        ]),
        sparse: Some(&[
            [0.90692, -2.11478, 0.5, 3.0, -0.21922152, 0.44437516],
            [0.3188, 0.40579996, 0.2, 0.2, 0.1230872, 0.6937502],
        ]),
    },
    Case {
        optimizer: "Momentum", flag: Some(("use_nesterov", true)), slots: &[0.2], scalars: &[0.1, 0.9],
        dense: Some(&[
            [0.94350797, -2.059222, 0.39622802, 2.866698, -0.216952, 0.517358],
            [0.006799996, 0.3738, 0.3188, 0.40579996, 0.24080002, 0.5918],
        ]),
        sparse: Some(&[
            [0.896228, -2.133302, 0.5, 3.0, -0.21229936, 0.39993763],
            [0.3188, 0.40579996, 0.2, 0.2, 0.1230872, 0.6937502],
        ]),
    },
    Case {
        optimizer: "KerasMomentum", flag: Some(("use_nesterov", false)), slots: &[0.2], scalars: &[0.1, 0.9],
        dense: Some(&[
            [1.4627, -1.507, 0.9434999, 3.4218001, 0.32329994, 1.0892],
            [0.15969999, 0.122999966, 0.1285, 0.11979998, 0.13629998, 0.101199985],
        ]),
        sparse: Some(&[
            [1.4434999, -1.5782001, 0.5, 3.0, 0.70852524, 1.3721218],
            [0.1285, 0.11979998, 0.2, 0.2, 0.1046083, 0.047541972],
        ]),
    },
    Case {
        optimizer: "KerasMomentum", flag: Some(("use_nesterov", true)), slots: &[0.2], scalars: &[0.1, 0.9],
        dense: Some(&[
            [1.42643, -1.5763001, 0.87915003, 3.3496199, 0.26596996, 1.0002799],
            [0.15969999, 0.122999966, 0.1285, 0.11979998, 0.13629998, 0.101199985],
        ]),
        sparse: Some(&[
            [1.3791499, -1.65038, 0.5, 3.0, 0.6226727, 1.2349097],
            [0.1285, 0.11979998, 0.2, 0.2, 0.1046083, 0.047541972],
        ]),
    },
    Case {
        optimizer: "Adam", flag: Some(("use_nesterov", false)), slots: &[0.1, 0.2], scalars: &[0.9, 0.999, 0.01, 0.9, 0.999, 0.001],
        dense: Some(&[
            [0.99810076, -2.0016854, 0.49796554, 2.9978118, -0.25111777, 0.7472307],
            [0.058999997, 0.095699996, 0.0902, 0.0989, 0.082399994, 0.1175],
            [0.19961053, 0.19954053, 0.19962034, 0.19957045, 0.19990009, 0.19977237],
        ]),
        sparse: None,
    },
    Case {
        optimizer: "Adam", flag: Some(("use_nesterov", true)), slots: &[0.1, 0.2], scalars: &[0.9, 0.999, 0.01, 0.9, 0.999, 0.001],
        dense: Some(&[
            [0.99836135, -2.0016582, 0.4980278, 2.997819, -0.2510061, 0.7471197],
            [0.058999997, 0.095699996, 0.0902, 0.0989, 0.082399994, 0.1175],
            [0.19961053, 0.19954053, 0.19962034, 0.19957045, 0.19990009, 0.19977237],
        ]),
        sparse: None,
    },
    Case {
        optimizer: "AdamWithAmsgrad", flag: None, slots: &[0.1, 0.2, 0.1998], scalars: &[0.9, 0.999, 0.01, 0.9, 0.999, 0.001],
        dense: Some(&[
            [0.99810123, -2.0016847, 0.49796614, 2.9978125, -0.2511174, 0.7472319],
            [0.058999997, 0.095699996, 0.0902, 0.0989, 0.082399994, 0.1175],
            [0.19961053, 0.19954053, 0.19962034, 0.19957045, 0.19990009, 0.19977237],
            [0.19981, 0.19984001, 0.19989, 0.1998, 0.20005, 0.20016],
        ]),
        sparse: None,
    },
    Case {
        optimizer: "AdaMax", flag: None, slots: &[0.1, 0.2], scalars: &[0.9, 0.01, 0.9, 0.999, 0.001],
        dense: Some(&[
            [0.88075966, -2.1029744, 0.4042226, 2.9003167, -0.2816239, 0.68463236],
            [0.058999997, 0.095699996, 0.0902, 0.0989, 0.082399994, 0.1175],
            [0.4, 0.3, 0.29970002, 0.3996, 0.5, 0.59880066],
        ]),
        sparse: None,
    },
    Case {
        optimizer: "Adagrad", flag: Some(("update_slots", true)), slots: &[0.1], scalars: &[0.1],
        dense: Some(&[
            [0.9900512, -2.0336049, 0.45251465, 2.9407985, -0.23003429, 0.66884744],
            [0.31, 0.24000001, 0.32, 0.27, 0.6, 0.4725],
        ]),
        sparse: Some(&[
            [0.95251465, -2.0592015, 0.5, 3.0, -0.23054388, 0.6736643],
            [0.32, 0.27, 0.1, 0.1, 0.81, 0.6125],
        ]),
    },
    Case {
        optimizer: "Adagrad", flag: Some(("update_slots", false)), slots: &[0.1], scalars: &[0.1],
        dense: Some(&[
            [1.0316228, -2.0632455, 0.43675444, 2.9051318, -0.25, 0.5760747],
            [0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
        ]),
        sparse: Some(&[
            [0.93675447, -2.0948682, 0.5, 3.0, -0.2183772, 0.5128291],
            [0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
        ]),
    },
    Case {
        optimizer: "AdagradV2", flag: Some(("update_slots", true)), slots: &[0.1], scalars: &[0.1, 0.01],
        dense: Some(&[
            [0.9909659, -2.0331213, 0.45362073, 2.941944, -0.23061642, 0.67002743],
            [0.31, 0.24000001, 0.32, 0.27, 0.6, 0.4725],
        ]),
        sparse: Some(&[
            [0.95362073, -2.058056, 0.5, 3.0, -0.23062968, 0.6740261],
            [0.32, 0.27, 0.1, 0.1, 0.81, 0.6125],
        ]),
    },
    Case {
        optimizer: "AdagradV2", flag: Some(("update_slots", false)), slots: &[0.1], scalars: &[0.1, 0.01],
        dense: Some(&[
            [1.0306535, -2.061307, 0.43869314, 2.9080398, -0.25, 0.58140606],
            [0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
        ]),
        sparse: Some(&[
            [0.9386931, -2.0919602, 0.5, 3.0, -0.21934658, 0.5200993],
            [0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
        ]),
    },
    Case {
        optimizer: "AdagradDA", flag: None, slots: &[0.1, 0.2], scalars: &[0.1, 0.05, 0.01, 3.0],
        dense: Some(&[
            [-0.0, -0.025593113, -0.023038853, -0.04089804, -0.0, -0.06582089],
            [0.0, 0.3, 0.3, 0.4, 0.099999994, 0.65000004],
            [0.41000003, 0.34, 0.42000002, 0.37, 0.7, 0.5725],
        ]),
        sparse: Some(&[
            [-0.023038855, -0.040898047, 0.5, 3.0, -0.0, -0.08263515],
            [0.3, 0.4, 0.1, 0.1, 0.0, 0.85],
            [0.42000002, 0.37, 0.2, 0.2, 0.91, 0.71250004],
        ]),
    },
    Case {
        optimizer: "AdagradDA", flag: None, slots: &[0.1, 0.2], scalars: &[0.1, 0.0, 0.01, 3.0],
        dense: Some(&[
            [-0.0, -0.051186226, -0.046077706, -0.06543686, -0.011909582, -0.08556716],
            [0.0, 0.3, 0.3, 0.4, 0.099999994, 0.65000004],
            [0.41000003, 0.34, 0.42000002, 0.37, 0.7, 0.5725],
        ]),
        sparse: Some(&[
            [-0.04607771, -0.06543687, 0.5, 3.0, -0.0, -0.100342676],
            [0.3, 0.4, 0.1, 0.1, 0.0, 0.85],
            [0.42000002, 0.37, 0.2, 0.2, 0.91, 0.71250004],
        ]),
    },
    Case {
        optimizer: "RMSProp", flag: None, slots: &[0.3, 0.1], scalars: &[0.1, 0.9, 0.5, 0.001],
        dense: Some(&[
            [0.9004438, -2.1130137, 0.36044803, 2.8154545, -0.27380955, 0.4914753],
            [0.23911, 0.23183998, 0.23809001, 0.2341, 0.26395002, 0.24901],
            [-0.04429328, 0.07516515, 0.038220733, 0.031099193, 0.08666229, 0.040078618],
        ]),
        sparse: Some(&[
            [0.86044806, -2.1845455, 0.5, 3.0, -0.25281227, 0.3999436],
            [0.23809001, 0.2341, 0.3, 0.3, 0.21874127, 0.19530283],
            [0.038220726, 0.03109919, 0.1, 0.1, 0.06483331, 0.04812062],
        ]),
    },
    Case {
        optimizer: "CenteredRMSProp", flag: None, slots: &[0.1, 0.3, 0.1], scalars: &[0.1, 0.9, 0.5, 0.001],
        dense: Some(&[
            [0.8988905, -2.1139984, 0.35812408, 2.8124373, -0.27464223, 0.4846738],
            [0.058999997, 0.095699996, 0.0902, 0.0989, 0.082399994, 0.1175],
            [0.23911, 0.23183998, 0.23809001, 0.2341, 0.26395002, 0.24901],
            [-0.04429517, 0.07644832, 0.038965996, 0.0318096, 0.08786905, 0.04113765],
        ]),
        sparse: Some(&[
            [0.8581241, -2.1875625, 0.5, 3.0, -0.2541828, 0.39058083],
            [0.0902, 0.0989, 0.1, 0.1, 0.054823987, 0.11189031],
            [0.23809001, 0.2341, 0.3, 0.3, 0.21874127, 0.19530283],
            [0.038965993, 0.0318096, 0.1, 0.1, 0.06559315, 0.049739204],
        ]),
    },
    Case {
        optimizer: "Ftrl", flag: Some(("multiply_linear_by_lr", false)), slots: &[0.1, 0.2], scalars: &[0.1, 0.05, 0.01, -0.5],
        dense: Some(&[
            [-0.00845706, -0.38142845, 0.03228301, -0.10610478, -0.12139931, 0.28146777],
            [0.31, 0.24000001, 0.32, 0.27, 0.6, 0.4725],
            [0.097256064, 1.9262388, -0.23326594, 0.6034587, 0.99278307, -1.9904003],
        ]),
        sparse: Some(&[
            [0.16891797, -0.10610478, 0.5, 3.0, -0.03932082, -0.014437644],
            [0.32, 0.27, 0.1, 0.1, 0.81, 0.6125],
            [-1.0089226, 0.6034587, 0.2, 0.2, 0.4046738, 0.16328119],
        ]),
    },
    Case {
        optimizer: "Ftrl", flag: Some(("multiply_linear_by_lr", true)), slots: &[0.1, 0.2], scalars: &[0.1, 0.05, 0.01, -0.5],
        dense: Some(&[
            [-0.5479244, -0.85994095, -0.35594246, -0.67173743, -0.42462978, 0.016852597],
            [0.31, 0.24000001, 0.32, 0.27, 0.6, 0.4725],
            [0.31116724, 0.4280032, 0.20706332, 0.35538846, 0.33476606, -0.01661795],
        ]),
        sparse: Some(&[
            [-0.21930748, -0.67173743, 0.5, 3.0, -0.57654715, -0.47913706],
            [0.32, 0.27, 0.1, 0.1, 0.81, 0.6125],
            [0.12949765, 0.35538846, 0.2, 0.2, 0.5250455, 0.38094234],
        ]),
    },
    Case {
        optimizer: "Ftrl", flag: Some(("multiply_linear_by_lr", false)), slots: &[0.1, 0.2], scalars: &[0.1, 0.3, 0.01, -0.7],
        dense: Some(&[
            [0.0, -0.4170054, 0.0, -0.051751304, -0.092075065, 0.3102995],
            [0.31, 0.24000001, 0.32, 0.27, 0.6, 0.4725],
            [0.0033151805, 1.8439806, -0.17228986, 0.50799006, 0.9457853, -2.1421623],
        ]),
        sparse: Some(&[
            [0.13398288, -0.051751304, 0.5, 3.0, 0.0, -0.015990952],
            [0.32, 0.27, 0.1, 0.1, 0.81, 0.6125],
            [-0.9061477, 0.50799006, 0.2, 0.2, 0.17218769, 0.41378134],
        ]),
    },
    Case {
        optimizer: "FtrlV2", flag: Some(("multiply_linear_by_lr", false)), slots: &[0.1, 0.2], scalars: &[0.1, 0.05, 0.01, 0.02, -0.5],
        dense: Some(&[
            [-0.019371685, -0.35494128, 0.027223779, -0.14190587, -0.11905879, 0.27384764],
            [0.31, 0.24000001, 0.32, 0.27, 0.6, 0.4725],
            [0.15824442, 1.7959489, -0.20454541, 0.7902027, 0.97460663, -1.9378681],
        ]),
        sparse: Some(&[
            [0.15737322, -0.080027096, 0.5, 3.0, -0.035450198, -0.022909114],
            [0.32, 0.27, 0.1, 0.1, 0.81, 0.6125],
            [-0.94338477, 0.4674335, 0.2, 0.2, 0.3697608, 0.22975037],
        ]),
    },
    Case {
        optimizer: "FtrlV2", flag: Some(("multiply_linear_by_lr", true)), slots: &[0.1, 0.2], scalars: &[0.1, 0.05, 0.01, 0.02, -0.6],
        dense: Some(&[
            [-0.6911123, -0.98450834, -0.42103687, -0.8699232, -0.46353778, 0.03016341],
            [0.31, 0.24000001, 0.32, 0.27, 0.6, 0.4725],
            [0.34864968, 0.42513254, 0.2183671, 0.40329093, 0.34710103, -0.024296625],
        ]),
        sparse: Some(&[
            [-0.26998764, -0.79232055, 0.5, 3.0, -0.69563186, -0.5621328],
            [0.32, 0.27, 0.1, 0.1, 0.81, 0.6125],
            [0.1418205, 0.36776087, 0.2, 0.2, 0.6194053, 0.42501673],
        ]),
    },
    Case {
        optimizer: "Adadelta", flag: None, slots: &[0.1, 0.2], scalars: &[0.5, 0.9, 0.001],
        dense: Some(&[
            [1.0520955, -2.139852, 0.35449594, 2.8016162, -0.2464171, 0.40836713],
            [0.09331, 0.08604, 0.09229, 0.0883, 0.11815, 0.103209995],
            [0.18457603, 0.1724923, 0.18518794, 0.17455214, 0.22326918, 0.19432585],
        ]),
        sparse: Some(&[
            [0.85449594, -2.1983838, 0.5, 3.0, -0.19457997, 0.27913222],
            [0.09229, 0.0883, 0.1, 0.1, 0.112453096, 0.08901466],
            [0.18518794, 0.17455214, 0.2, 0.2, 0.20830052, 0.16702117],
        ]),
    },
    Case {
        optimizer: "ProximalGradientDescent", flag: None, slots: &[], scalars: &[0.1, 0.3, 0.2],
        dense: Some(&[
            [0.866375, -1.8183053, 0.36560223, 2.711808, -0.15096758, 0.5683956],
        ]),
        sparse: Some(&[
            [0.83676356, -1.8267711, 0.5, 3.0, -0.046592843, 0.42779905],
        ]),
    },
    Case {
        optimizer: "ProximalGradientDescent", flag: None, slots: &[], scalars: &[0.1, 0.0, 0.2],
        dense: Some(&[
            [0.9528915, -1.9048218, 0.45211875, 2.7983243, -0.23748408, 0.6549121],
        ]),
        sparse: Some(&[
            [0.92327994, -1.9132876, 0.5, 3.0, -0.21463577, 0.59584194],
        ]),
    },
    Case {
        optimizer: "ProximalAdagrad", flag: None, slots: &[0.1], scalars: &[0.1, 0.3, 0.2],
        dense: Some(&[
            [0.6601432, -1.5714166, 0.23706639, 2.3674843, -0.08204213, 0.4891283],
            [0.31, 0.24000001, 0.32, 0.27, 0.6, 0.4725],
        ]),
        sparse: Some(&[
            [0.6819898, -1.6043209, 0.5, 3.0, -0.00900685, 0.2967488],
            [0.32, 0.27, 0.1, 0.1, 0.81, 0.6125],
        ]),
    },
    Case {
        optimizer: "AddSign", flag: None, slots: &[0.1], scalars: &[0.1, 1.0, 0.9, 0.9],
        dense: Some(&[
            [0.947, -2.074, 0.408, 2.925, -0.34, 0.62749994],
            [0.05899999, 0.0957, 0.0902, 0.0989, 0.082399994, 0.1175],
        ]),
        sparse: None,
    },
    Case {
        optimizer: "PowerSign", flag: None, slots: &[0.1], scalars: &[0.1, 1.5, 0.9, 0.9],
        dense: Some(&[
            [0.8946468, -2.1491122, 0.31490594, 2.8482952, -0.42990923, 0.5018597],
            [0.05899999, 0.0957, 0.0902, 0.0989, 0.082399994, 0.1175],
        ]),
        sparse: None,
    },
];
