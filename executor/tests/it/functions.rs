//! Tests of functions that kernels call: calls, branches and loops on one device.

use anabranch_executor::LibraryFunctions;
use device::cancel::Cancellation;
use device::function::Function;
use device::kernel::Step;
use device::{Error, LocalRendezvous, Pool, Result, Value};
use graph::{Attrs, Code, FuncAttr, Graph, Tensor};
use kernels::testing::lone_device;
use smallvec::smallvec;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Returns the function `main` of a library in textual form, with values for its attributes.
fn function(library: &str, attrs: Attrs) -> Result<Arc<dyn Function>> {
    let library = Graph::from_text(library)?.library;
    let device: Arc<device::Device> = Arc::new(lone_device());
    let functions =
        LibraryFunctions::of_graph(&library, &device, &Arc::from([device.clone()]), &Pool::new(2)?);
    functions.get(&FuncAttr { name: "main".into(), attrs })
}

fn step() -> Arc<Step> {
    Arc::new(Step::new(1, Arc::new(LocalRendezvous::new()), Arc::new(Cancellation::new())))
}

fn call_in(step: &Arc<Step>, function: &dyn Function, args: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let (sender, receiver) = mpsc::channel();
    function.call(step, args.into_iter().map(Value::Host).collect(), Box::new(move |r| drop(sender.send(r))));
    let ended = receiver.recv_timeout(Duration::from_secs(60)).map_err(|e| Error::internal(e.to_string()))?;
    let host = |value| match value {
        Value::Host(tensor) => Ok(tensor),
        other => Err(Error::internal(format!("{other:?}"))),
    };
    ended?.into_iter().map(host).collect()
}

fn run(library: &str, args: Vec<Tensor>) -> Result<Vec<Tensor>> {
    call_in(&step(), &*function(library, Attrs::new())?, args)
}

const SQUARE: &str = r#"
%function square
  %attr T type
  %arg x: $T
  %output y: $T
  mul = Mul[T=$T](x, x)
  %return y = "mul:z:0"
%end
"#;

#[test]
fn a_function_calls_others_by_name_and_by_attribute() -> Result<()> {
    let library = format!(
        "{SQUARE}
        %function main
          %arg x: float
          %output fourth: float
          %output x_again: float
          old = square[T=float](x)
          new = PartitionedCall[Tin=[float], Tout=[float], f=@square[T=float]](\"old:y:0\")
          %return fourth = \"new:output:0\"
          %return x_again = x
        %end"
    );
    assert_eq!(run(&library, vec![3f32.into()])?, [81f32.into(), 3f32.into()]);
    let wrong = run(&library, vec![3i32.into()]).map_err(|e| e.code());
    assert_eq!(wrong, Err(Code::InvalidArgument));
    assert_eq!(run(&library, vec![]).map_err(|e| e.code()), Err(Code::InvalidArgument));
    Ok(())
}

/// Computes 2 to the power of n with a `While` loop.
const POWER: &str = r#"
%function less
  %arg i: int32
  %arg n: int32
  %arg x: float
  %output go: bool
  less = Less[T=int32](i, n)
  %return go = "less:z:0"
%end
%function double
  %arg i: int32
  %arg n: int32
  %arg x: float
  %output i_next: int32
  %output n_same: int32
  %output x_next: float
  one = Const[dtype=int32, value=int32<>{1}]
  add = AddV2[T=int32](i, "one:output:0")
  twice = AddV2[T=float](x, x)
  %return i_next = "add:z:0"
  %return n_same = n
  %return x_next = "twice:z:0"
%end
%function main
  %arg n: int32
  %output x: float
  zero = Const[dtype=int32, value=int32<>{0}]
  start = Const[dtype=float, value=float<>{1.0}]
  loop = While[T=[int32, int32, float], cond=@less, body=@double]("zero:output:0", n, "start:output:0")
  %return x = "loop:output:2"
%end
"#;

#[test]
fn a_loop_runs_until_its_condition_is_false() -> Result<()> {
    assert_eq!(run(POWER, vec![20i32.into()])?, [1_048_576f32.into()]);
    assert_eq!(run(POWER, vec![0i32.into()])?, [1f32.into()]);
    Ok(())
}

/// Returns a library whose `main` counts down to `bottom` by nested calls.
fn countdown(bottom: i32) -> String {
    format!(
        "%function stop
          %arg n: int32
          %output m: int32
          %return m = n
        %end
        %function again
          %arg n: int32
          %output m: int32
          one = Const[dtype=int32, value=int32<>{{1}}]
          less = Sub[T=int32](n, \"one:output:0\")
          next = main(\"less:z:0\")
          %return m = \"next:m:0\"
        %end
        %function main
          %arg n: int32
          %output m: int32
          bottom = Const[dtype=int32, value=int32<>{{{bottom}}}]
          more = Greater[T=int32](n, \"bottom:output:0\")
          if = StatelessIf[Tcond=bool, Tin=[int32], Tout=[int32], then_branch=@again, else_branch=@stop](\"more:z:0\", n)
          %return m = \"if:output:0\"
        %end"
    )
}

#[test]
fn recursion_works_but_is_limited_in_depth() -> Result<()> {
    assert_eq!(run(&countdown(0), vec![100i32.into()])?, [0i32.into()]);
    let endless = run(&countdown(i32::MIN), vec![100i32.into()]);
    assert_eq!(endless.map_err(|e| e.code()), Err(Code::ResourceExhausted));
    Ok(())
}

#[test]
fn a_failed_call_names_the_inner_node_and_does_not_cancel_the_step() -> Result<()> {
    let library = r#"
        %function main
          %arg x: float
          %output y: float
          checked = CheckNumerics[T=float, message="bad"](x)
          %return y = "checked:output:0"
        %end"#;
    let (step, main) = (step(), function(library, Attrs::new())?);
    let failed = call_in(&step, &*main, vec![f32::NAN.into()]).map_err(|e| e.to_string());
    assert_eq!(failed, Err("bad : Tensor had NaN values\n\t [[{{node checked}}]]".to_owned()));
    assert!(!step.cancellation.is_cancelled());
    // The failure of one step does not affect calls of the function in another step.
    assert_eq!(call_in(&self::step(), &*main, vec![1f32.into()])?, [1f32.into()]);
    step.cancellation.cancel(Error::new(Code::Cancelled, "enough"));
    let late = call_in(&step, &*main, vec![1f32.into()]);
    assert!(late.as_ref().is_err_and(|e| e.is_derived() && e.code() == Code::Cancelled), "{late:?}");
    Ok(())
}

#[test]
fn cancelling_the_caller_ends_an_endless_loop() -> Result<()> {
    let library = r#"
        %function always
          %arg x: float
          %output go: bool
          true = Const[dtype=bool, value=bool<>{true}]
          %return go = "true:output:0"
        %end
        %function same
          %arg x: float
          %output y: float
          %return y = x
        %end
        %function main
          %arg x: float
          %output y: float
          loop = While[T=[float], cond=@always, body=@same](x)
          %return y = "loop:output:0"
        %end"#;
    let (step, main) = (step(), function(library, Attrs::new())?);
    let (sender, receiver) = mpsc::channel();
    main.call(&step, smallvec![Value::Host(1f32.into())], Box::new(move |r| drop(sender.send(r))));
    step.cancellation.cancel(Error::new(Code::Cancelled, "enough"));
    let ended = receiver.recv_timeout(Duration::from_secs(60)).map_err(|e| Error::internal(e.to_string()))?;
    assert_eq!(ended.map(|_| ()).map_err(|e| (e.code(), e.is_derived())), Err((Code::Cancelled, true)));
    Ok(())
}

#[test]
fn branches_are_chosen_by_index_and_counting_loops_count() -> Result<()> {
    let library = r#"
        %function one
          %output y: int32
          c = Const[dtype=int32, value=int32<>{1}]
          %return y = "c:output:0"
        %end
        %function two
          %output y: int32
          c = Const[dtype=int32, value=int32<>{2}]
          %return y = "c:output:0"
        %end
        %function add
          %arg i: int32
          %arg sum: int32
          %output y: int32
          add = AddV2[T=int32](i, sum)
          %return y = "add:z:0"
        %end
        %function main
          %arg index: int32
          %output chosen: int32
          %output sum: int32
          case = Case[Tin=[], Tout=[int32], branches=[@one, @two]](index)
          ten = Const[dtype=int32, value=int32<>{10}]
          minus = Const[dtype=int32, value=int32<>{-3}]
          zero = Const[dtype=int32, value=int32<>{0}]
          for = For[T=[int32], body=@add]("ten:output:0", "zero:output:0", "minus:output:0", "zero:output:0")
          %return chosen = "case:output:0"
          %return sum = "for:output:0"
        %end"#;
    for (index, chosen) in [(0, 1), (1, 2), (2, 2), (-1, 2)] {
        assert_eq!(run(library, vec![index.into()])?, [Tensor::from(chosen), Tensor::from(10 + 7 + 4 + 1)]);
    }
    Ok(())
}

#[test]
fn a_compute_thread_cannot_wait_for_a_call() -> Result<()> {
    let library = format!(
        "{SQUARE}\n%function main\n%arg x: float\n%output y: float\nsq = square[T=float](x)\n%return y = \"sq:y:0\"\n%end"
    );
    let main = function(&library, Attrs::new())?;
    let got = main.call_and_wait(&step(), smallvec![Value::Host(3f32.into())])?;
    assert!(matches!(&got[..], [Value::Host(t)] if *t == 9f32.into()), "{got:?}");
    let (sender, receiver) = mpsc::channel();
    Pool::new(1)?.spawn(move || {
        drop(sender.send(main.call_and_wait(&step(), smallvec![Value::Host(3f32.into())]).map(|_| ())));
    });
    let refused =
        receiver.recv_timeout(Duration::from_secs(60)).map_err(|e| Error::internal(e.to_string()))?;
    assert_eq!(refused.map_err(|e| e.code()), Err(Code::Internal));
    Ok(())
}
