//! Gradients of collectives over the workers of a cluster. Collectives are linear, so a gradient is compared with the
//! outputs for inputs that are 1 at one element and 0 elsewhere.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use client::{Session, SessionOptions};
use graph::{AttrValue, DType, NodeId, Output, Scope, Shape, Tensor};

const WORKERS: usize = 3;

/// The members' inputs and outputs of a collective.
struct Collective {
    xs: Vec<Output>,
    ys: Vec<Output>,
}

/// A collective with the same op and attributes on all members. `more_inputs` adds its further inputs on the member of
/// a rank.
struct Case {
    op: &'static str,
    rows: usize,
    more_inputs: fn(&Scope, usize) -> Vec<Output>,
    attrs: Vec<(&'static str, AttrValue)>,
}

fn on_worker(scope: &Scope, rank: usize) -> Scope {
    scope.device(&format!("/job:worker/task:{rank}/device:CPU:0"))
}

fn keys(scope: &Scope, _: usize) -> Vec<Output> {
    [WORKERS as i32, 1, 7].map(|key| scope.constant(key)).to_vec()
}

fn no_inputs(_: &Scope, _: usize) -> Vec<Output> {
    Vec::new()
}

/// Returns the inputs of a collective in subgroups: a communicator, in which rank *r* is the task with number `WORKERS
/// - 1 - r`, and an assignment of its members to subgroups.
fn in_subgroups(scope: &Scope, task: usize) -> Vec<Output> {
    let [key, rank, size] = [1, (WORKERS - 1 - task) as i32, WORKERS as i32].map(|n| scope.constant(n));
    let call = scope.op("CollectiveInitializeCommunicator").input(key).input(rank).input(size);
    vec![call.output(), scope.constant([[2], [0], [1]])]
}

fn all_together(scope: &Scope, task: usize) -> Vec<Output> {
    vec![in_subgroups(scope, task)[0], scope.constant([[2, 0, 1]])]
}

fn case(op: &'static str, more_inputs: fn(&Scope, usize) -> Vec<Output>) -> Case {
    Case { op, rows: WORKERS, more_inputs, attrs: Vec::new() }
}

impl Case {
    fn attr(mut self, name: &'static str, value: impl Into<AttrValue>) -> Case {
        self.attrs.push((name, value.into()));
        self
    }

    fn with_keys(self) -> Case {
        self.attr("group_size", WORKERS as i64).attr("group_key", 1i64).attr("instance_key", 7i64)
    }

    fn reduction(self, final_op: &str) -> Case {
        self.attr("merge_op", "Add").attr("final_op", final_op)
    }

    /// Adds the collective to a graph, on all workers.
    fn build(&self, scope: &Scope) -> Collective {
        let member = |rank: usize| {
            let at = on_worker(scope, rank);
            let x = at.placeholder("x", DType::Double, &shape(self.rows));
            let mut call = at.op(self.op).input(x);
            for input in (self.more_inputs)(&at, rank) {
                call = call.input(input);
            }
            if call_takes_tokens(self.op) {
                call = call.input(Vec::new());
            }
            for (name, value) in &self.attrs {
                call = call.attr(name, value.clone());
            }
            (x, call.output())
        };
        let (xs, ys) = (0..WORKERS).map(member).unzip();
        Collective { xs, ys }
    }
}

/// Returns whether ordering tokens are an input of the op.
fn call_takes_tokens(op: &str) -> bool {
    op.ends_with("V2") && !op.starts_with("CollectiveBcast")
}

fn shape(rows: usize) -> Shape {
    Shape::new(&[rows, 2]).unwrap_or_default()
}

fn cases() -> Vec<Case> {
    let gathered = graph::PartialShape::from(&shape(WORKERS * WORKERS));
    vec![
        case("CollectiveReduce", no_inputs).with_keys().reduction("Id").attr("subdiv_offsets", vec![0i64]),
        case("CollectiveReduce", no_inputs).with_keys().reduction("Div").attr("subdiv_offsets", vec![0i64]),
        case("CollectiveReduceV2", keys).reduction("Id"),
        case("CollectiveReduceV2", keys).reduction("Div"),
        case("CollectiveReduceScatterV2", keys).reduction("Id"),
        case("CollectiveReduceScatterV2", keys).reduction("Div"),
        case("CollectiveGather", no_inputs).with_keys().attr("shape", gathered),
        case("CollectiveGatherV2", keys),
        case("CollectiveAllToAllV2", keys),
        case("CollectiveReduceV3", in_subgroups).attr("reduction", "Add"),
        case("CollectiveReduceV3", all_together).attr("reduction", "Add"),
        case("CollectiveAllToAllV3", all_together),
    ]
}

/// Returns a broadcast from worker 1.
fn broadcast(scope: &Scope) -> Collective {
    let at = |rank: usize| on_worker(scope, rank);
    let x = at(1).placeholder("x", DType::Double, &shape(2));
    let member = |rank: usize| {
        let at = at(rank);
        let [size, group, instance] = [WORKERS as i32, 1, 7].map(|key| at.constant(key));
        if rank == 1 {
            return at.op("CollectiveBcastSendV2").input(x).input(size).input(group).input(instance).output();
        }
        let call = at.op("CollectiveBcastRecvV2").input(size).input(group).input(instance);
        call.input(at.constant([2, 2])).attr("T", DType::Double).output()
    };
    Collective { xs: vec![x], ys: (0..WORKERS).map(member).collect() }
}

/// Compares the gradients of a collective with its outputs for unit inputs. The nodes `also` must run in each step that
/// computes gradients.
fn check(
    cluster: &Cluster,
    scope: &Scope,
    built: &Collective,
    weights: &[Output],
    gradients: &[Output],
    also: &[NodeId],
) -> Fallible {
    let graph = scope.finish()?;
    let shapes = |outputs: &[Output]| -> Fallible<Vec<Shape>> {
        let known = |o: &Output| scope.shape(*o).as_shape().ok_or("an unknown shape".into());
        outputs.iter().map(known).collect()
    };
    let (x_shapes, w_shapes) = (shapes(&built.xs)?, shapes(weights)?);
    let session = Session::connect(&cluster.target("worker", 0), graph, SessionOptions::default())?;
    let weight = |member: usize, element: usize| (5 * member + element * element + 1) as f64;
    let mut fed: Vec<(Output, Tensor)> = Vec::new();
    for (member, (w, shape)) in weights.iter().zip(&w_shapes).enumerate() {
        let values: Vec<f64> = (0..shape.num_elements()).map(|i| weight(member, i)).collect();
        fed.push((*w, Tensor::from_slice(&values, shape.clone())?));
    }
    let zeros = |member: usize| {
        Tensor::from_slice(&vec![0f64; x_shapes[member].num_elements()], x_shapes[member].clone())
    };
    for (member, x) in built.xs.iter().enumerate() {
        fed.push((*x, zeros(member)?));
    }
    let got = session.run(&fed, gradients, also)?;
    for (member, got) in got.iter().enumerate() {
        for (element, &slope) in got.values::<f64>()?.iter().enumerate() {
            let mut unit = vec![0f64; x_shapes[member].num_elements()];
            unit[element] = 1.0;
            let mut feeds = fed.clone();
            feeds[weights.len() + member].1 = Tensor::from_slice(&unit, x_shapes[member].clone())?;
            let mut expected = 0.0;
            for (to, y) in session.run(&feeds, &built.ys, &[])?.iter().enumerate() {
                let values = y.values::<f64>()?;
                expected += values.iter().enumerate().map(|(i, y)| y * weight(to, i)).sum::<f64>();
            }
            assert!(
                (slope - expected).abs() < 1e-9,
                "member {member}, element {element}: {slope}, not {expected}"
            );
        }
    }
    Ok(())
}

/// Adds a fed gradient for each output.
fn weights(scope: &Scope, ys: &[Output]) -> Vec<Output> {
    let weight =
        |(rank, y): (usize, &Output)| on_worker(scope, rank).placeholder("w", DType::Double, scope.shape(*y));
    ys.iter().enumerate().map(weight).collect()
}

#[test]
fn gradients_of_collectives_reach_the_inputs_of_all_members() -> Fallible {
    let cluster = Cluster::start(&[("worker", WORKERS)])?;
    for case in cases() {
        let scope = Scope::new();
        let built = case.build(&scope);
        let weights = weights(&scope, &built.ys);
        let given: Vec<Option<Output>> = weights.iter().copied().map(Some).collect();
        let gradients = scope.gradients(&built.ys, &built.xs, &given)?;
        let gradients: Option<Vec<Output>> = gradients.into_iter().collect();
        let gradients = gradients.ok_or_else(|| format!("{} has no gradient", case.op))?;
        check(&cluster, &scope, &built, &weights, &gradients, &[])
            .map_err(|e| format!("{}: {e}", case.op))?;
    }
    Ok(())
}

#[test]
fn the_source_of_a_broadcast_gets_the_sum_of_the_gradients_of_all_members() -> Fallible {
    let cluster = Cluster::start(&[("worker", WORKERS)])?;
    let scope = Scope::new();
    let built = broadcast(&scope);
    let weights = weights(&scope, &built.ys);
    let gradients = scope.gradients(&[built.ys[1]], &built.xs, &[Some(weights[1])])?;
    let gradient = gradients[0].ok_or("the broadcast has no gradient")?;
    let also = [0, 2].map(|rank| scope.broadcast_gradient(built.ys[rank], weights[rank]).node);
    check(&cluster, &scope, &built, &weights, &[gradient], &also)
}

#[test]
fn a_step_computes_the_first_and_the_second_derivative_of_a_reduction() -> Fallible {
    let cluster = Cluster::start(&[("worker", WORKERS)])?;
    let scope = Scope::new();
    let built = case("CollectiveReduceV2", keys).reduction("Id").build(&scope);
    let squares: Vec<Output> = built.ys.iter().map(|y| scope.square(*y)).collect();
    let first: Option<Vec<Output>> = scope.gradients(&squares, &built.xs, &[])?.into_iter().collect();
    let first = first.ok_or("no first derivative")?;
    let second: Option<Vec<Output>> = scope.gradients(&first, &built.xs, &[])?.into_iter().collect();
    let second = second.ok_or("no second derivative")?;
    let session = Session::connect(&cluster.target("worker", 0), scope.finish()?, SessionOptions::default())?;
    let input = |rank: usize| Tensor::from_slice(&[rank as f64; 2 * WORKERS], shape(WORKERS));
    let feeds = built.xs.iter().enumerate().map(|(rank, x)| Ok((*x, input(rank)?)));
    let feeds = feeds.collect::<Fallible<Vec<_>>>()?;
    let fetches: Vec<Output> = first.into_iter().chain(second).collect();
    // The sum of y² over three members is 3y², where y is the sum of the inputs, 0 + 1 + 2 = 3. Its gradient is 6y =
    // 18.
    let expected = [18.0; WORKERS].into_iter().chain([18.0; WORKERS]);
    for (got, expected) in session.run(&feeds, &fetches, &[])?.iter().zip(expected) {
        assert!(got.values::<f64>()?.iter().all(|&slope| slope == expected), "{got:?}, not {expected}");
    }
    Ok(())
}

#[test]
fn reductions_other_than_sums_have_no_gradient() -> Fallible {
    let scope = Scope::new();
    let built = case("CollectiveReduceV2", keys).attr("merge_op", "Max").attr("final_op", "Id").build(&scope);
    let error = scope.gradients(&built.ys, &built.xs, &[]).err().ok_or("a maximum has a gradient")?;
    let text = error.to_string();
    assert!(text.contains("No gradient is defined for op 'CollectiveReduceV2 (merge_op Max)'"), "{text}");
    Ok(())
}
