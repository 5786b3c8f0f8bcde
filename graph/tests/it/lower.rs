//! Tests of lowering: calls are replaced by their bodies, and functional control flow by Switch, Merge and loop
//! frames.

use anabranch_graph::passes::{lower, lower_placed, validate};
use anabranch_graph::{Graph, Result};
use expect_test::{Expect, expect};

fn check(text: &str, expected: Expect) -> Result<()> {
    match lower(&Graph::from_text(text)?) {
        Err(error) => expected.assert_eq(&error.to_string()),
        Ok(mut lowered) => {
            validate(&lowered)?;
            lowered.library = Default::default();
            expected.assert_eq(&lowered.to_text());
        }
    }
    Ok(())
}

const SCALE: &str = r#"
%function scale
  %arg x: float
  %output y: float
  two = Const[dtype=float, value=float<>{2.0}]
  mul = Mul[T=float](x, "two:output:0") @"/device:CPU:1"
  %return y = "mul:z:0"
%end
%function note stateful
  %arg x: float
  %output same: float
  %control_output noted
  print = CheckNumerics[T=float, message="m", _class=["loc:@other"]](x)
  other = NoOp
  %return same = x
  %control_return noted = print
%end
x = Placeholder[dtype=float]
go = NoOp
"#;

#[test]
fn a_call_is_replaced_by_its_body() -> Result<()> {
    check(
        &format!("{SCALE}\ncall = scale(x) @\"/job:ps/task:1\"\nafter = Identity[T=float](call, ^call)"),
        expect![[r#"
            x = Placeholder[dtype=float]
            go = NoOp
            call = IdentityN[T=[float], _stands_for_lowered=true](call/mul, ^call/output_control_node) @"/job:ps/task:1"
            after = Identity[T=float](call, ^call/output_control_node)
            call/two = Const[dtype=float, value=float<>{2.0}] @"/job:ps/task:1"
            call/mul = Mul[T=float](x, call/two) @"/job:ps/task:1/device:CPU:1"
            call/output_control_node = NoOp(^call/mul) @"/job:ps/task:1"
        "#]],
    )
}

#[test]
fn control_inputs_of_a_call_apply_to_its_body() -> Result<()> {
    check(
        &format!("{SCALE}\ncall = note(x, ^go)\nlast = NoOp(^call)\nuse = Identity[T=float](call)"),
        expect![[r#"
            x = Placeholder[dtype=float]
            go = NoOp
            call = IdentityN[T=[float], _stands_for_lowered=true](call/output, ^call/output_control_node)
            last = NoOp(^call/output_control_node)
            use = Identity[T=float](call)
            call/print = CheckNumerics[T=float, _class=["loc:@call/other"], message="m"](x, ^go)
            call/other = NoOp(^go)
            call/output = Identity[T=float](x, ^go)
            call/output_control_node = NoOp(^go, ^call/print, ^call/output)
        "#]],
    )
}

#[test]
fn constants_of_a_call_in_a_branch_are_dead_where_its_arguments_are() -> Result<()> {
    check(
        r#"
            %function two
              %arg x: float
              %output y: float
              c = Const[dtype=float, value=float<>{2.0}]
              %return y = "c:output:0"
            %end
            x = Placeholder[dtype=float]
            p = Placeholder[dtype=bool]
            switch = Switch[T=float](x, p)
            call = two(switch:1)
            merge = Merge[T=float, N=2](switch, call)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            p = Placeholder[dtype=bool]
            switch = Switch[T=float](x, p)
            call = IdentityN[T=[float], _stands_for_lowered=true](call/c, ^call/output_control_node)
            merge = Merge[N=2, T=float](switch, call)
            call/input = Identity[T=float](switch:1)
            call/c = Const[dtype=float, value=float<>{2.0}](^call/input)
            call/output_control_node = NoOp(^call/input, ^call/c)
        "#]],
    )
}

#[test]
fn if_is_lowered_to_switch_and_merge() -> Result<()> {
    check(
        &format!(
            "{SCALE}\np = Placeholder[dtype=bool]\n\
             if = If[Tcond=bool, Tin=[float], Tout=[float], then_branch=@note, else_branch=@scale](p, x, ^go)\n\
             use = Identity[T=float](if)"
        ),
        expect![[r#"
            x = Placeholder[dtype=float]
            go = NoOp
            p = Placeholder[dtype=bool]
            if = IdentityN[T=[float], _stands_for_lowered=true](if/merge, ^if/output_control_node)
            use = Identity[T=float](if)
            if/switch_pred = Switch[T=bool](p, p, ^go)
            if/switch = Switch[T=float](x, p)
            if/pivot_else = Identity[T=bool](if/switch_pred)
            if/else = IdentityN[T=[float], _stands_for_lowered=true](if/else/mul, ^if/else/output_control_node)
            if/else_executed = Identity[T=bool](if/pivot_else, ^if/else/output_control_node)
            if/pivot_then = Identity[T=bool](if/switch_pred:1)
            if/then = IdentityN[T=[float], _stands_for_lowered=true](if/then/output, ^if/then/output_control_node)
            if/then_executed = Identity[T=bool](if/pivot_then, ^if/then/output_control_node)
            if/merge = Merge[N=2, T=float](if/else/mul, if/then/output)
            if/branch_executed = Merge[N=2, T=bool](if/else_executed, if/then_executed)
            if/output_control_node = NoOp(^if/merge, ^if/branch_executed)
            if/else/two = Const[dtype=float, value=float<>{2.0}](^if/pivot_else)
            if/else/mul = Mul[T=float](if/switch, if/else/two) @"/device:CPU:1"
            if/else/output_control_node = NoOp(^if/pivot_else, ^if/else/mul)
            if/then/print = CheckNumerics[T=float, _class=["loc:@if/then/other"], message="m"](if/switch:1, ^if/pivot_then)
            if/then/other = NoOp(^if/pivot_then)
            if/then/output = Identity[T=float](if/switch:1, ^if/pivot_then)
            if/then/output_control_node = NoOp(^if/pivot_then, ^if/then/print, ^if/then/output)
        "#]],
    )
}

#[test]
fn while_is_lowered_to_a_loop_frame() -> Result<()> {
    check(
        r#"
        %function less
          %arg i: int32
          %arg n: int32
          %output go: bool
          less = Less[T=int32](i, n)
          %return go = "less:z:0"
        %end
        %function next
          %arg i: int32
          %arg n: int32
          %output i_next: int32
          %output n_same: int32
          one = Const[dtype=int32, value=int32<>{1}]
          add = AddV2[T=int32](i, "one:output:0")
          %return i_next = "add:z:0"
          %return n_same = n
        %end
        i = Placeholder[dtype=int32]
        n = Placeholder[dtype=int32]
        loop = While[T=[int32, int32], cond=@less, body=@next](i, n)
        use = Identity[T=int32](loop:1)
        "#,
        expect![[r#"
            i = Placeholder[dtype=int32]
            n = Placeholder[dtype=int32]
            loop = IdentityN[T=[int32, int32], _stands_for_lowered=true](loop/exit, loop/exit_1, ^loop/output_control_node)
            use = Identity[T=int32](loop:1)
            loop/enter = Enter[T=int32, frame_name="loop", is_constant=false, parallel_iterations=10](i)
            loop/merge = Merge[N=2, T=int32](loop/enter, loop/next_iteration)
            loop/enter_1 = Enter[T=int32, frame_name="loop", is_constant=true, parallel_iterations=10](n)
            loop/cond = IdentityN[T=[bool], _stands_for_lowered=true](loop/cond/less, ^loop/cond/output_control_node)
            loop/LoopCond = LoopCond(loop/cond/less)
            loop/switch = Switch[T=int32](loop/merge, loop/LoopCond)
            loop/loop_body_control = Identity[T=int32](loop/switch:1)
            loop/exit = Exit[T=int32](loop/switch)
            loop/body = IdentityN[T=[int32, int32], _stands_for_lowered=true](loop/body/add, loop/body/output, ^loop/body/output_control_node)
            loop/next_iteration = NextIteration[T=int32](loop/body/add)
            loop/exit_1 = Identity[T=int32](n, ^loop/exit)
            loop/output_control_node = NoOp(^loop/exit, ^loop/exit_1)
            loop/cond/less = Less[T=int32](loop/merge, loop/enter_1, ^loop/merge)
            loop/cond/output_control_node = NoOp(^loop/merge, ^loop/cond/less)
            loop/body/one = Const[dtype=int32, value=int32<>{1}](^loop/loop_body_control)
            loop/body/add = AddV2[T=int32](loop/switch:1, loop/body/one)
            loop/body/output = Identity[T=int32](loop/enter_1, ^loop/loop_body_control)
            loop/body/output_control_node = NoOp(^loop/loop_body_control, ^loop/body/add, ^loop/body/output)
        "#]],
    )
}

#[test]
fn recursive_calls_are_left_to_kernels() -> Result<()> {
    check(
        "%function again\n%arg x: float\n%output y: float\nn = again(x)\n%return y = \"n:y:0\"\n%end\n\
         %function never[_noinline=true]\n%arg x: float\n%output y: float\n%return y = x\n%end\n\
         x = Placeholder[dtype=float]\ncall = again(x)\nother = never(x)",
        expect![[r#"
            x = Placeholder[dtype=float]
            call = IdentityN[T=[float], _stands_for_lowered=true](call/n, ^call/output_control_node)
            other = PartitionedCall[Tin=[float], Tout=[float], f=@never](x)
            call/n = PartitionedCall[Tin=[float], Tout=[float], f=@again](x)
            call/output_control_node = NoOp(^call/n)
        "#]],
    )
}

#[test]
fn the_gradient_of_a_recursive_function_is_unimplemented() -> Result<()> {
    check(
        "%function again\n%arg x: float\n%output y: float\nn = again(x)\n%return y = \"n:y:0\"\n%end\n\
         x = Placeholder[dtype=float]\ng = SymbolicGradient[Tin=[float, float], Tout=[float], f=@again](x, x)",
        expect![[r#"
            a gradient that needs function again within itself
            	 [[{{node g/gradients/n_grad/SymbolicGradient}}]]"#]],
    )
}

const PLACED: &str = "
    %function far[_noinline=true]\n%arg x: float\n%output y: float
    n = Neg[T=float](x) @\"/job:ps/task:1\"\n%return y = \"n:y:0\"\n%end
    %function outer[_noinline=true]\n%arg x: float\n%output y: float
    n = PartitionedCall[Tin=[float], Tout=[float], f=@far](x)\n%return y = \"n:output:0\"\n%end
    %function near\n%arg x: float\n%output y: float\nn = Neg[T=float](x)\n%return y = \"n:y:0\"\n%end
    x = Placeholder[dtype=float]
    far = PartitionedCall[Tin=[float], Tout=[float], f=@outer](x)
    near = PartitionedCall[Tin=[float], Tout=[float], f=@near](x)";

#[test]
fn bodies_with_devices_are_lowered_in_spite_of_noinline() -> Result<()> {
    check(
        PLACED,
        expect![[r#"
        x = Placeholder[dtype=float]
        far = IdentityN[T=[float], _stands_for_lowered=true](far/n/n, ^far/output_control_node)
        near = IdentityN[T=[float], _stands_for_lowered=true](near/n, ^near/output_control_node)
        far/n = IdentityN[T=[float], _stands_for_lowered=true](far/n/n, ^far/n/output_control_node)
        far/output_control_node = NoOp(^far/n/output_control_node)
        near/n = Neg[T=float](x)
        near/output_control_node = NoOp(^near/n)
        far/n/n = Neg[T=float](x) @"/job:ps/task:1"
        far/n/output_control_node = NoOp(^far/n/n)
    "#]],
    )
}

#[test]
fn lower_placed_lowers_only_bodies_with_devices() -> Result<()> {
    let mut lowered = lower_placed(&Graph::from_text(PLACED)?)?;
    lowered.library = Default::default();
    expect![[r#"
        x = Placeholder[dtype=float]
        far = IdentityN[T=[float], _stands_for_lowered=true](far/n/n, ^far/output_control_node)
        near = PartitionedCall[Tin=[float], Tout=[float], f=@near](x)
        far/n = IdentityN[T=[float], _stands_for_lowered=true](far/n/n, ^far/n/output_control_node)
        far/output_control_node = NoOp(^far/n/output_control_node)
        far/n/n = Neg[T=float](x) @"/job:ps/task:1"
        far/n/output_control_node = NoOp(^far/n/n)
    "#]]
    .assert_eq(&lowered.to_text());
    Ok(())
}

#[test]
fn symbolic_gradients_are_lowered_to_backward_passes_of_the_bodies() -> Result<()> {
    check(
        "%function square\n%arg x: float\n%output y: float\nn = Square[T=float](x)\n%return y = \"n:y:0\"\n%end
        %function fourth\n%arg x: float\n%arg n: int32\n%output y: float
        a = square(x)\nb = square(\"a:y:0\")\n%return y = \"b:y:0\"\n%end
        x = Placeholder[dtype=float]\nn = Placeholder[dtype=int32]\ndy = Placeholder[dtype=float]
        g = SymbolicGradient[Tin=[float, int32, float], Tout=[float, int32], f=@fourth](x, n, dy)",
        expect![[r#"
            x = Placeholder[dtype=float]
            n = Placeholder[dtype=int32]
            dy = Placeholder[dtype=float]
            g = IdentityN[T=[float, int32], _stands_for_lowered=true](g/gradients/a_grad/SymbolicGradient/gradients/n_grad/Mul_1, g/ZerosLike, ^g/output_control_node)
            g/a = IdentityN[T=[float], _stands_for_lowered=true](g/a/n, ^g/a/output_control_node)
            g/gradients/b_grad/SymbolicGradient = IdentityN[T=[float], _stands_for_lowered=true](g/gradients/b_grad/SymbolicGradient/gradients/n_grad/Mul_1, ^g/gradients/b_grad/SymbolicGradient/output_control_node)
            g/gradients/a_grad/SymbolicGradient = IdentityN[T=[float], _stands_for_lowered=true](g/gradients/a_grad/SymbolicGradient/gradients/n_grad/Mul_1, ^g/gradients/a_grad/SymbolicGradient/output_control_node)
            g/ZerosLike = ZerosLike[T=int32](n)
            g/output_control_node = NoOp(^g/gradients/a_grad/SymbolicGradient/output_control_node, ^g/ZerosLike)
            g/a/n = Square[T=float](x)
            g/a/output_control_node = NoOp(^g/a/n)
            g/gradients/b_grad/SymbolicGradient/gradients/n_grad/Const = Const[dtype=float, value=float<>{2.0}]
            g/gradients/b_grad/SymbolicGradient/gradients/n_grad/Mul = Mul[T=float](g/gradients/b_grad/SymbolicGradient/gradients/n_grad/Const, g/a/n)
            g/gradients/b_grad/SymbolicGradient/gradients/n_grad/Mul_1 = Mul[T=float](dy, g/gradients/b_grad/SymbolicGradient/gradients/n_grad/Mul)
            g/gradients/b_grad/SymbolicGradient/output_control_node = NoOp(^g/gradients/b_grad/SymbolicGradient/gradients/n_grad/Mul_1)
            g/gradients/a_grad/SymbolicGradient/gradients/n_grad/Const = Const[dtype=float, value=float<>{2.0}]
            g/gradients/a_grad/SymbolicGradient/gradients/n_grad/Mul = Mul[T=float](g/gradients/a_grad/SymbolicGradient/gradients/n_grad/Const, x)
            g/gradients/a_grad/SymbolicGradient/gradients/n_grad/Mul_1 = Mul[T=float](g/gradients/b_grad/SymbolicGradient/gradients/n_grad/Mul_1, g/gradients/a_grad/SymbolicGradient/gradients/n_grad/Mul)
            g/gradients/a_grad/SymbolicGradient/output_control_node = NoOp(^g/gradients/a_grad/SymbolicGradient/gradients/n_grad/Mul_1)
        "#]],
    )
}

#[test]
fn symbolic_gradients_of_ops_are_lowered_to_their_gradients() -> Result<()> {
    check(
        "x = Placeholder[dtype=float]\ny = Placeholder[dtype=float]\ndz = Placeholder[dtype=float]
        g = SymbolicGradient[Tin=[float, float, float], Tout=[float, float], f=@MatMul[T=float]](x, y, dz)",
        expect![[r#"
            x = Placeholder[dtype=float]
            y = Placeholder[dtype=float]
            dz = Placeholder[dtype=float]
            g = IdentityN[T=[float, float], _stands_for_lowered=true](g/gradients/MatMul_grad/MatMul, g/gradients/MatMul_grad/MatMul_1, ^g/output_control_node)
            g/gradients/MatMul_grad/MatMul = MatMul[T=float, transpose_a=false, transpose_b=true](dz, y)
            g/gradients/MatMul_grad/MatMul_1 = MatMul[T=float, transpose_a=true, transpose_b=false](x, dz)
            g/output_control_node = NoOp(^g/gradients/MatMul_grad/MatMul, ^g/gradients/MatMul_grad/MatMul_1)
        "#]],
    )
}

#[test]
fn errors_of_symbolic_gradients_name_the_op_without_a_gradient() -> Result<()> {
    check(
        "x = Placeholder[dtype=float]
        g = SymbolicGradient[Tin=[float, float, float], Tout=[float, float], f=@Mod[T=float]](x, x, x)",
        expect!["No gradient is defined for op 'Mod' (node {{node Mod}})"],
    )
}

#[test]
fn errors_in_bodies_name_the_calling_node() -> Result<()> {
    check(
        "call = PartitionedCall[Tin=[], Tout=[], f=@nobody]",
        expect![[r#"
        Function nobody is not defined.
        	 [[{{node call}}]]"#]],
    )?;
    check(
        "%function f\nn = NotAnOp\n%end\ncall = PartitionedCall[Tin=[], Tout=[], f=@f]",
        expect![
            "Op type not registered 'NotAnOp' in this server's binary. The node that uses it is {{node n}}; docs/OPS.md lists the ops that are there"
        ],
    )
}
