//! Comparison of every op's gradient with central differences and, if TensorFlow's client can build the gradient, with
//! TensorFlow's result.

use crate::gradient_cases::{Case, Input, all};
use crate::support::{Fallible, python};
use client::{Server, ServerConfig, Session, SessionOptions};
use graph::ops::Gradient;
use graph::{DType, Output, Scope, Shape, Tensor, ops};
use prost::Message;
use proto::convert::{DefaultAttrs, graph_to_proto};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const COMPLEX: &str = "central differences are implemented for real numbers only";
const OF_A_DISTRIBUTION: &str = "derivative of the distribution, not of the numbers drawn from one stream";

const OF_STATES: &str =
    "defined for the states and the outputs alone, like TensorFlow's: graph/src/ops/recurrent.rs";

const OF_SEVERAL_MEMBERS: &str = "compared over several members in tests/it/collectives.rs";

const OF_A_FUNCTION: &str =
    "gradient of the function's body: graph/tests/it/lower.rs, tests/clients/programs/defun.py";

/// Ops whose gradient cannot be compared with central differences, each with the reason.
const EXCUSED: &[(&str, &str)] = &[
    ("Complex", COMPLEX),
    ("Real", COMPLEX),
    ("Imag", COMPLEX),
    ("Angle", COMPLEX),
    ("ComplexAbs", COMPLEX),
    ("Conj", COMPLEX),
    ("FFT", COMPLEX),
    ("FFT2D", COMPLEX),
    ("FFT3D", COMPLEX),
    ("IFFT", COMPLEX),
    ("IFFT2D", COMPLEX),
    ("IFFT3D", COMPLEX),
    ("CollectiveAllToAllV2", OF_SEVERAL_MEMBERS),
    ("CollectiveAllToAllV3", OF_SEVERAL_MEMBERS),
    ("CollectiveBcastSend", OF_SEVERAL_MEMBERS),
    ("CollectiveBcastSendV2", OF_SEVERAL_MEMBERS),
    ("CollectiveGather", OF_SEVERAL_MEMBERS),
    ("CollectiveGatherV2", OF_SEVERAL_MEMBERS),
    ("CollectiveReduce", OF_SEVERAL_MEMBERS),
    ("CollectiveReduceScatterV2", OF_SEVERAL_MEMBERS),
    ("CollectiveReduceV2", OF_SEVERAL_MEMBERS),
    ("CollectiveReduceV3", OF_SEVERAL_MEMBERS),
    (
        "FakeQuantWithMinMaxArgs",
        "piecewise constant: the gradient is passed through where the value is in range",
    ),
    (
        "FakeQuantWithMinMaxVars",
        "piecewise constant: the gradient is passed through where the value is in range",
    ),
    (
        "FakeQuantWithMinMaxVarsPerChannel",
        "piecewise constant: the gradient is passed through where the value is in range",
    ),
    ("PartitionedCall", OF_A_FUNCTION),
    ("PreventGradient", "its gradient is an error"),
    ("QuantizeAndDequantize", "piecewise constant: the gradient is passed through"),
    ("QuantizeAndDequantizeV2", "piecewise constant: the gradient is passed through"),
    ("QuantizeAndDequantizeV3", "piecewise constant: the gradient is passed through"),
    (
        "QuantizeAndDequantizeV4",
        "piecewise constant: the gradient is passed through where the value is in range",
    ),
    ("BlockLSTM", OF_STATES),
    ("BlockLSTMV2", OF_STATES),
    ("RandomGamma", OF_A_DISTRIBUTION),
    ("RefIdentity", "its input is a reference to a variable; its gradient is that of Identity"),
    ("Rint", "piecewise constant: the gradient is passed through by convention"),
    ("StatefulPartitionedCall", OF_A_FUNCTION),
    ("StatelessRandomGammaV2", OF_A_DISTRIBUTION),
    ("StatelessRandomGammaV3", OF_A_DISTRIBUTION),
];

/// Ops for which `tf.gradients` has no rule, or has a rule whose result has another form or meaning than ours.
const NOT_THE_CLIENTS: &[&str] = &["ReadVariableOp", "ResourceGather", "ResourceGatherNd", "TopK"];

#[test]
fn every_gradient_equals_the_central_difference() -> Fallible {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gradients");
    std::fs::create_dir_all(&folder)?;
    let cases = all();
    let covered: BTreeSet<&str> =
        cases.iter().map(|c| c.op).chain(EXCUSED.iter().map(|(op, _)| *op)).collect();
    let mut wrong: Vec<String> = ops::all()
        .iter()
        .filter(|op| matches!(op.def.gradient, Gradient::Defined(_)) && !covered.contains(op.name()))
        .map(|op| format!("{}: has no case", op.name()))
        .collect();
    let server = Arc::new(Server::new(ServerConfig::default())?);
    let mut manifest = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        match check(case, &server, number, &folder) {
            Ok(entry) => manifest.push(entry),
            Err(error) => wrong.push(format!("{} {number}: {error}", case.op)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let file = folder.join("manifest.json");
    manifest.retain(|m| m["op"].as_str().is_some_and(|op| !NOT_THE_CLIENTS.contains(&op)));
    std::fs::write(&file, serde_json::Value::from(manifest).to_string())?;
    let output = python::run(python::script("tests/tensorflow/gradients.py")?.arg(&file))?;
    assert!(output.contains(" 0 differences"), "{output}");
    Ok(())
}

/// A session with the graph of a case, and the case's inputs and outputs.
struct CaseGraph {
    session: Session,
    /// The differentiable inputs: the output and the value of each.
    xs: Vec<(Output, Tensor)>,
    feeds: Vec<(Output, Tensor)>,
    ys: Vec<Output>,
    /// Assignments that initialise resource variables before each run.
    start: Vec<graph::NodeId>,
}

/// Compares a case's gradients with central differences; returns the case's entry in the manifest, the file from which
/// TensorFlow's client repeats the cases.
fn check(case: &Case, server: &Arc<Server>, number: usize, folder: &Path) -> Fallible<serde_json::Value> {
    let scope = Scope::new();
    let (mut xs, mut feeds, mut wrt, mut start) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut call = scope.op(case.op);
    for argument in &case.inputs {
        let mut given = Vec::new();
        for input in &argument.inputs {
            let name = format!("in{}", feeds.len() + xs.len());
            let placeholder = |t: &Tensor| scope.placeholder(&name, t.dtype(), t.shape());
            match input {
                Input::Differentiable(t) => {
                    let x = placeholder(t);
                    xs.push((x, t.clone()));
                    wrt.push(x);
                    given.push(x);
                }
                Input::Fixed(t) => {
                    let x = placeholder(t);
                    feeds.push((x, t.clone()));
                    given.push(x);
                }
                Input::Constant(t) => given.push(scope.constant(t.clone())),
                Input::Variable(t) => {
                    let x = placeholder(t);
                    let shared = format!("gradient_{number}_{name}");
                    let handle = scope
                        .op("VarHandleOp")
                        .attr("dtype", t.dtype())
                        .attr("shape", graph::PartialShape::from(t.shape()))
                        .attr("shared_name", shared.as_str())
                        .output();
                    start.push(scope.op("AssignVariableOp").input(handle).input(x).node());
                    xs.push((x, t.clone()));
                    wrt.push(handle);
                    given.push(handle);
                }
            }
        }
        call = if argument.is_list { call.input(given) } else { call.input(given[0]) };
    }
    for (name, value) in &case.attrs {
        call = call.attr(name, value.clone());
    }
    let ys: Vec<Output> = call
        .name("y")
        .outputs()
        .into_iter()
        .filter(|y| scope.dtype(*y).is_floating())
        .take(case.outputs)
        .collect();
    scope.finish()?;
    let fed_weights: Vec<Output> = ys
        .iter()
        .enumerate()
        .map(|(i, y)| scope.placeholder(&format!("weight{i}"), scope.dtype(*y), scope.shape(*y)))
        .collect();
    // The weights are the gradients with respect to the outputs. A gradient that is computed may be a weight itself,
    // and a fed tensor cannot be fetched, so an Identity follows each placeholder.
    let weights: Vec<Output> = fed_weights.iter().map(|w| scope.op("Identity").input(*w).output()).collect();
    let given: Vec<Option<Output>> = weights.iter().copied().map(Some).collect();
    let gradients = scope.gradients(&ys, &wrt, &given)?;
    let graph = scope.finish()?;
    let session = Session::on_server(server, graph.clone(), SessionOptions::default())?;
    let built = CaseGraph { session, xs, feeds, ys, start };

    let values: Vec<Tensor> = built.xs.iter().map(|(_, v)| v.clone()).collect();
    let at = built.outputs(&values)?;
    let seeds: Vec<Tensor> = at
        .iter()
        .enumerate()
        .map(|(i, y)| spread(y.dtype(), y.shape(), 0.3, 1.7, 91 + i))
        .collect::<Result<_, _>>()?;
    let mut fed = built.feeds(&values);
    fed.extend(fed_weights.iter().copied().zip(seeds.iter().cloned()));
    for (i, gradient) in gradients.iter().enumerate() {
        let slope = match gradient {
            Some(g) => {
                let got = built.session.run(&fed, &[*g], &[])?.remove(0);
                if got.shape() != values[i].shape() {
                    return Err(
                        format!("gradient {i} has shape {}, not {}", got.shape(), values[i].shape()).into()
                    );
                }
                reals(&got)?
            }
            None => vec![0.0; values[i].num_elements()],
        };
        let single = values[i].dtype() == DType::Float;
        let (step, tolerance) = if single { (1e-2, 2e-2) } else { (1e-5, 1e-5) };
        for (element, slope) in slope.iter().enumerate() {
            let mut moved = [0.0; 2];
            for (value, by) in moved.iter_mut().zip([step, -step]) {
                let mut values = values.clone();
                values[i] = shifted(&values[i], element, by)?;
                for (y, w) in built.outputs(&values)?.iter().zip(&seeds) {
                    *value += reals(y)?.iter().zip(reals(w)?).map(|(y, w)| y * w).sum::<f64>();
                }
            }
            let difference = (moved[0] - moved[1]) / (2.0 * step);
            if (difference - slope).abs() > tolerance * (1.0 + difference.abs()) || slope.is_nan() {
                return Err(format!(
                    "gradient {i} at element {element} is {slope}, the central difference {difference}"
                )
                .into());
            }
        }
    }
    let file = folder.join(format!("{number}.pb"));
    std::fs::write(&file, graph_to_proto(&graph, DefaultAttrs::Keep)?.encode_to_vec())?;
    let names = |outputs: &[Output]| outputs.iter().map(|o| graph.output_name(*o)).collect::<Vec<_>>();
    Ok(serde_json::json!({
        "op": case.op,
        "graph": file,
        "feeds": fed.iter().map(|(o, t)| json_of(&graph.output_name(*o), t)).collect::<Fallible<Vec<_>>>()?,
        "ys": names(&built.ys),
        "xs": names(&wrt),
        "weights": names(&weights),
        "gradients": gradients.iter().map(|g| g.map(|g| graph.output_name(g))).collect::<Vec<_>>(),
    }))
}

impl CaseGraph {
    fn feeds(&self, values: &[Tensor]) -> Vec<(Output, Tensor)> {
        let xs = self.xs.iter().zip(values).map(|((x, _), v)| (*x, v.clone()));
        self.feeds.iter().cloned().chain(xs).collect()
    }

    fn outputs(&self, values: &[Tensor]) -> Fallible<Vec<Tensor>> {
        let feeds = self.feeds(values);
        if !self.start.is_empty() {
            self.session.run(&feeds, &[], &self.start)?;
        }
        Ok(self.session.run(&feeds, &self.ys, &[])?)
    }
}

/// Returns evenly spaced values between two bounds in a permuted order, so that no two values are close.
pub(crate) fn spread(dtype: DType, shape: &Shape, low: f64, high: f64, seed: usize) -> Fallible<Tensor> {
    let n = shape.num_elements();
    let stride = (2 * n / 3..)
        .find(|s| (1..=n).filter(|d| n.is_multiple_of(*d) && s % d == 0).count() <= 1)
        .unwrap_or(1);
    let at = |i: usize| low + (high - low) * (((i * stride + seed) % n.max(1)) as f64 + 0.5) / n as f64;
    let values: Vec<f64> = (0..n).map(at).collect();
    Ok(match dtype {
        DType::Float => {
            Tensor::from_slice(&values.iter().map(|v| *v as f32).collect::<Vec<_>>(), shape.clone())?
        }
        _ => Tensor::from_slice(&values, shape.clone())?,
    })
}

/// Returns the elements of a floating-point tensor as doubles.
fn reals(tensor: &Tensor) -> Fallible<Vec<f64>> {
    Ok(match tensor.dtype() {
        DType::Float => tensor.values::<f32>()?.iter().map(|v| f64::from(*v)).collect(),
        _ => tensor.values::<f64>()?.to_vec(),
    })
}

/// Returns a copy of a tensor with one element changed by `by`.
fn shifted(tensor: &Tensor, element: usize, by: f64) -> Fallible<Tensor> {
    let mut out = tensor.clone();
    match tensor.dtype() {
        DType::Float => out.values_mut::<f32>()?[element] += by as f32,
        _ => out.values_mut::<f64>()?[element] += by,
    }
    Ok(out)
}

/// Returns a feed as JSON, for the manifest.
fn json_of(name: &str, tensor: &Tensor) -> Fallible<serde_json::Value> {
    let values = match tensor.dtype() {
        DType::Float | DType::Double => serde_json::json!(reals(tensor)?),
        DType::Bool => serde_json::json!(tensor.bytes()?),
        _ => serde_json::json!(tensor.to_i64s()?),
    };
    let shape: Vec<usize> = tensor.shape().dims().to_vec();
    Ok(serde_json::json!({"name": name, "dtype": tensor.dtype().name(), "shape": shape, "values": values}))
}
