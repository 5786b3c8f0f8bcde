//! Tests of each placement rule and each placement error, on graphs given as text.

use crate::support::{Result, TestKernels, device, devices, graph_of, small_cluster};
use anabranch_placer::{DeviceSet, PlaceRequest, place};
use expect_test::{Expect, expect};

const KERNELS: TestKernels = TestKernels { without: &[], gpu: &[] };

fn outcome(text: &str, set: &DeviceSet, kernels: &TestKernels, soft: bool) -> Result<String> {
    let graph = graph_of(text)?;
    let request = PlaceRequest { devices: set, kernels, allow_soft_placement: soft, assigned: &[] };
    Ok(match place(&graph, &request) {
        Ok(placement) => {
            let mut lines: Vec<String> = placement.log(&graph).collect();
            lines.extend(placement.warnings.iter().map(|w| format!("warning: {w}")));
            lines.join("\n")
        }
        Err(error) => format!("{:?}: {error}", error.code()),
    })
}

/// Compares the placement on one parameter server and two workers, without soft placement.
fn check(text: &str, expected: Expect) -> Result<()> {
    expected.assert_eq(&outcome(text, &small_cluster()?, &KERNELS, false)?);
    Ok(())
}

fn check_soft(text: &str, expected: Expect) -> Result<()> {
    expected.assert_eq(&outcome(text, &small_cluster()?, &KERNELS, true)?);
    Ok(())
}

/// Compares the placement on two workers with a CPU and two GPUs each. `Identity` and `VarHandleOp` have
/// kernels on both device types, `AddV2` only on GPUs.
fn check_gpu(text: &str, soft: bool, expected: Expect) -> Result<()> {
    let set = devices(&["w:0/CPU:0", "w:0/GPU:1", "w:0/GPU:0", "w:1/CPU:0", "w:1/GPU:0", "w:1/GPU:1"])?
        .with_local(graph::TaskName::new("w", 0));
    let kernels =
        TestKernels { without: &["AddV2"], gpu: &[("Identity", 0), ("AddV2", 0), ("VarHandleOp", 0)] };
    expected.assert_eq(&outcome(text, &set, &kernels, soft)?);
    Ok(())
}

#[test]
fn unconstrained_nodes_go_to_the_local_process() -> Result<()> {
    check(
        "p = Placeholder()\ni = Identity(p)",
        expect![[r#"
        p: (Placeholder): /job:worker/replica:0/task:0/device:CPU:0 [where its consumer i is]
        i: (Identity): /job:worker/replica:0/task:0/device:CPU:0 [default]"#]],
    )
}

#[test]
fn partial_specifications_are_completed() -> Result<()> {
    check(
        "a = Placeholder() @/job:ps/task:0
         b = Identity(a) @/job:ps
         c = Identity(b) @/job:worker
         d = Identity(b) @/task:1
         e = Identity(b) @/job:worker/cpu:0",
        expect![[r#"
            a: (Placeholder): /job:ps/replica:0/task:0/device:CPU:0 [as requested]
            b: (Identity): /job:ps/replica:0/task:0/device:CPU:0 [as requested]
            c: (Identity): /job:worker/replica:0/task:0/device:CPU:0 [as requested]
            d: (Identity): /job:worker/replica:0/task:1/device:CPU:0 [as requested]
            e: (Identity): /job:worker/replica:0/task:0/device:CPU:0 [as requested]"#]],
    )
}

#[test]
fn gpus_with_kernels_are_preferred() -> Result<()> {
    check_gpu(
        "p = Placeholder()\ni = Identity(p)\nj = Identity(i) @/task:1\nk = AddV2(i, j) @/gpu:1",
        false,
        expect![[r#"
        p: (Placeholder): /job:w/replica:0/task:0/device:CPU:0 [default]
        i: (Identity): /job:w/replica:0/task:0/device:GPU:0 [default]
        j: (Identity): /job:w/replica:0/task:1/device:GPU:0 [as requested]
        k: (AddV2): /job:w/replica:0/task:0/device:GPU:1 [as requested]"#]],
    )
}

#[test]
fn kernel_priority_comes_before_device_type() -> Result<()> {
    let set = devices(&["w:0/CPU:0", "w:0/GPU:0"])?;
    let kernels = TestKernels { without: &[], gpu: &[("Identity", -1), ("AddV2", 1)] };
    let text = "p = Placeholder()\ni = Identity(p)\na = AddV2(i, i)\nb = AddV2(a, a) [i]\nj = Identity(p)";
    expect![[r#"
        p: (Placeholder): /job:w/replica:0/task:0/device:CPU:0 [default]
        i: (Identity): /job:w/replica:0/task:0/device:GPU:0 [default]
        a: (AddV2): /job:w/replica:0/task:0/device:GPU:0 [default]
        b: (AddV2): /job:w/replica:0/task:0/device:GPU:0 [colocated with i]
        j: (Identity): /job:w/replica:0/task:0/device:CPU:0 [default]"#]]
    .assert_eq(&outcome(text, &set, &kernels, false)?);
    Ok(())
}

#[test]
fn a_default_device_comes_first() -> Result<()> {
    let set = small_cluster()?.with_default(2);
    expect![[r#"
        a: (NoOp): /job:worker/replica:0/task:1/device:CPU:0 [default]
        b: (NoOp): /job:ps/replica:0/task:0/device:CPU:0 [as requested]"#]]
    .assert_eq(&outcome("a = NoOp()\nb = NoOp() @/job:ps", &set, &KERNELS, false)?);
    Ok(())
}

#[test]
fn nodes_without_inputs_follow_consumers_and_shape_ops_follow_inputs() -> Result<()> {
    check(
        "g = Const()
         h = Const()
         a = AddV2(g, h) @/job:ps
         b = Identity(h) @/task:1
         s = Shape(b)
         unused = Const()",
        expect![[r#"
            g: (Const): /job:ps/replica:0/task:0/device:CPU:0 [where its consumer a is]
            h: (Const): /job:worker/replica:0/task:0/device:CPU:0 [default]
            a: (AddV2): /job:ps/replica:0/task:0/device:CPU:0 [as requested]
            b: (Identity): /job:worker/replica:0/task:1/device:CPU:0 [as requested]
            s: (Shape): /job:worker/replica:0/task:1/device:CPU:0 [where its input b is]
            unused: (Const): /job:worker/replica:0/task:0/device:CPU:0 [default]"#]],
    )
}

#[test]
fn reference_edges_colocate_and_the_source_request_wins() -> Result<()> {
    check(
        "v = VariableV2() @/job:ps
         k = Const() @/task:1
         as = Assign(v, k) @/job:worker/task:1
         aa = AssignAdd(as, k) @/job:worker/task:1
         read = Identity(v) @/job:worker/task:1",
        expect![[r#"
            v: (VariableV2): /job:ps/replica:0/task:0/device:CPU:0 [as requested]
            k: (Const): /job:worker/replica:0/task:1/device:CPU:0 [as requested]
            as: (Assign): /job:ps/replica:0/task:0/device:CPU:0 [shares state with v]
            aa: (AssignAdd): /job:ps/replica:0/task:0/device:CPU:0 [shares state with v]
            read: (Identity): /job:worker/replica:0/task:1/device:CPU:0 [as requested]"#]],
    )
}

#[test]
fn resource_edges_colocate_and_the_first_request_wins_if_the_handle_has_none() -> Result<()> {
    check(
        "h = VarHandleOp()
         k = Const()
         a = AssignVariableOp(h, k) @/job:worker/task:1
         b = AssignAddVariableOp(h, k) @/job:ps",
        expect![[r#"
            h: (VarHandleOp): /job:worker/replica:0/task:1/device:CPU:0 [shares state with a]
            k: (Const): /job:worker/replica:0/task:1/device:CPU:0 [where its consumer a is]
            a: (AssignVariableOp): /job:worker/replica:0/task:1/device:CPU:0 [as requested]
            b: (AssignAddVariableOp): /job:worker/replica:0/task:1/device:CPU:0 [shares state with a]"#]],
    )
}

#[test]
fn resources_on_two_devices_cannot_share_an_op() -> Result<()> {
    let text = "v = VarHandleOp() @/job:ps/task:0
         w = VarHandleOp() @/job:worker/task:1
         k = Const()
         m = ResourceApplyMomentum(v, w, k, k, k)";
    check(
        text,
        expect![
            "InvalidArgument: Cannot place the graph because a reference or resource edge connects colocation groups with incompatible resource devices: /job:worker/task:1 vs /job:ps/task:0. The edge src node is name='w' (op='VarHandleOp'), and the dst node is name='m' (op='ResourceApplyMomentum')."
        ],
    )?;
    check_soft(
        text,
        expect![
            "InvalidArgument: Cannot place the graph because a reference or resource edge connects colocation groups with incompatible resource devices: /job:worker/task:1 vs /job:ps/task:0. The edge src node is name='w' (op='VarHandleOp'), and the dst node is name='m' (op='ResourceApplyMomentum')."
        ],
    )
}

#[test]
fn class_attributes_colocate() -> Result<()> {
    check(
        "b = Placeholder() [a]
         a = Placeholder() @/job:ps
         c = NoOp() [a, nobody]
         d = NoOp() [nobody]",
        expect![[r#"
            b: (Placeholder): /job:ps/replica:0/task:0/device:CPU:0 [colocated with a]
            a: (Placeholder): /job:ps/replica:0/task:0/device:CPU:0 [as requested]
            c: (NoOp): /job:ps/replica:0/task:0/device:CPU:0 [colocated with a]
            d: (NoOp): /job:ps/replica:0/task:0/device:CPU:0 [colocated with a]"#]],
    )
}

#[test]
fn contradicting_classes_are_refused() -> Result<()> {
    let text = "a = Const() @/job:worker/task:0
         b = Const() @/job:worker/task:1
         c = Identity(a) [a, b]";
    check(
        text,
        expect![[r#"
        InvalidArgument: Cannot colocate nodes {{colocation_node c}} and {{colocation_node b}}: Cannot merge devices with incompatible tasks: '/job:worker/task:0' and '/job:worker/task:1'
        	 [[{{node c}}]]"#]],
    )?;
    check_soft(
        text,
        expect![[r#"
        a: (Const): /job:worker/replica:0/task:0/device:CPU:0 [as requested]
        b: (Const): /job:worker/replica:0/task:1/device:CPU:0 [as requested]
        c: (Identity): /job:worker/replica:0/task:0/device:CPU:0 [colocated with a]"#]],
    )?;
    let types = "a = Const() @/device:CPU:0\nb = Const() @/device:GPU:0 [a]";
    check(
        types,
        expect![[r#"
        InvalidArgument: Cannot colocate nodes {{colocation_node b}} and {{colocation_node a}}: Cannot merge devices with incompatible types: '/device:GPU:0' and '/device:CPU:0'
        	 [[{{node b}}]]"#]],
    )?;
    check_soft(
        types,
        expect![[r#"
        a: (Const): /job:worker/replica:0/task:0/device:CPU:0 [as requested]
        b: (Const): /job:worker/replica:0/task:0/device:CPU:0 [soft placement]"#]],
    )?;
    check_soft(
        "v = VarHandleOp() @/job:ps\nw = VarHandleOp() @/task:1 [v]",
        expect![[r#"
        InvalidArgument: Cannot assign a device for operation v: Could not satisfy explicit device specification '/job:ps' because the node {{colocation_node v}} was colocated with a group of nodes that required incompatible device '/job:ps/task:1'. All available devices [/job:ps/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:1/device:CPU:0]. 
        Colocation Debug Info:
        Colocation group had the following types and supported devices: 
        Root Member(assigned_device_name_index_=-1 requested_device_name_='/job:ps/task:1' assigned_device_name_='' resource_device_name_='/job:ps/task:1' supported_device_types_=[CPU] possible_devices_=[]
        VarHandleOp: CPU 

        Colocation members, user-requested devices, and framework assigned devices, if any:
          v (VarHandleOp) /job:ps
          w (VarHandleOp) /task:1

        	 [[{{node v}}]]"#]],
    )
}

#[test]
fn classes_without_a_common_device_type_are_refused() -> Result<()> {
    check_gpu(
        "p = Placeholder()\na = AddV2(p, p) [p]",
        false,
        expect![[r#"
        InvalidArgument: Cannot colocate nodes {{colocation_node a}} and {{colocation_node p}} because no device type supports both of those nodes and the other nodes colocated with them.
        Colocation Debug Info:
        Colocation group had the following types and supported devices: 
        Root Member(assigned_device_name_index_=-1 requested_device_name_='' assigned_device_name_='' resource_device_name_='' supported_device_types_=[GPU] possible_devices_=[]
        AddV2: GPU 

        Colocation members, user-requested devices, and framework assigned devices, if any:
          a (AddV2) 

        Colocation Debug Info:
        Colocation group had the following types and supported devices: 
        Root Member(assigned_device_name_index_=-1 requested_device_name_='' assigned_device_name_='' resource_device_name_='' supported_device_types_=[CPU] possible_devices_=[]
        Placeholder: CPU 

        Colocation members, user-requested devices, and framework assigned devices, if any:
          p (Placeholder) 

        	 [[{{node a}}]]"#]],
    )?;
    check_gpu(
        "p = Placeholder()\na = AddV2(p, p) [p]",
        true,
        expect![[r#"
        p: (Placeholder): /job:w/replica:0/task:0/device:CPU:0 [default]
        a: (AddV2): /job:w/replica:0/task:0/device:GPU:0 [default]"#]],
    )
}

#[test]
fn missing_devices_are_refused() -> Result<()> {
    check(
        "a = NoOp() @/job:ps/task:9",
        expect![[r#"
        InvalidArgument: Cannot assign a device for operation a: {{node a}} was explicitly assigned to /job:ps/task:9 but available devices are [ /job:ps/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:1/device:CPU:0 ]. Make sure the device specification refers to a valid device.
        	 [[a]]"#]],
    )?;
    check_soft(
        "a = NoOp() @/job:ps/task:9",
        expect![[r#"
        InvalidArgument: Cannot assign a device for operation a: {{node a}} was explicitly assigned to /job:ps/task:9 but available devices are [ /job:ps/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:1/device:CPU:0 ]. Make sure the device specification refers to a valid device.
        	 [[a]]"#]],
    )?;
    check(
        "a = NoOp() @/job:ps/device:GPU:0",
        expect![[r#"
        InvalidArgument: Cannot assign a device for operation a: {{node a}} was explicitly assigned to /job:ps/device:GPU:0 but available devices are [ /job:ps/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:1/device:CPU:0 ]. Make sure the device specification refers to a valid device. The requested device appears to be a GPU, but CUDA is not enabled.
        	 [[a]]"#]],
    )?;
    check_soft(
        "a = NoOp() @/job:ps/device:GPU:0",
        expect!["a: (NoOp): /job:ps/replica:0/task:0/device:CPU:0 [soft placement]"],
    )?;
    check_soft(
        "a = NoOp() @/job:ps/cpu:7",
        expect!["a: (NoOp): /job:ps/replica:0/task:0/device:CPU:0 [soft placement]"],
    )
}

#[test]
fn malformed_device_names_are_refused() -> Result<()> {
    check(
        "a = NoOp() @/job:!!",
        expect!["InvalidArgument: Malformed device specification '/job:!!' in node: {{node a}}"],
    )
}

#[test]
fn nodes_without_a_kernel_are_refused() -> Result<()> {
    let kernels = TestKernels { without: &["Identity"], gpu: &[] };
    let set = small_cluster()?;
    expect![[r#"
        InvalidArgument: No OpKernel was registered to support Op 'Identity' used by {{node i}} with these attrs: [T=DT_FLOAT, _class=["loc:@p"]]
        Registered devices: [CPU]
        Registered kernels:
          <no registered kernels>

        	 [[i]]"#]].assert_eq(&outcome("p = Placeholder()\ni = Identity(p) [p]", &set, &kernels, false)?);
    // A node requested on another task is placed, because the other task may have kernels that this process does not
    // know.
    expect![[r#"
        p: (Placeholder): /job:worker/replica:0/task:1/device:CPU:0 [where its consumer i is]
        i: (Identity): /job:worker/replica:0/task:1/device:CPU:0 [as requested]"#]]
    .assert_eq(&outcome("p = Placeholder()\ni = Identity(p) @/task:1", &set, &kernels, false)?);
    check_gpu(
        "p = Placeholder() @/device:GPU:0",
        false,
        expect![[r#"
        InvalidArgument: Cannot assign a device for operation p: Could not satisfy explicit device specification '/device:GPU:0' because no supported kernel for GPU devices is available.
        Colocation Debug Info:
        Colocation group had the following types and supported devices: 
        Root Member(assigned_device_name_index_=-1 requested_device_name_='/device:GPU:0' assigned_device_name_='' resource_device_name_='' supported_device_types_=[CPU] possible_devices_=[]
        Placeholder: CPU 

        Colocation members, user-requested devices, and framework assigned devices, if any:
          p (Placeholder) /device:GPU:0

        Op: Placeholder
        Node attrs: dtype=DT_FLOAT
        Registered kernels:
          device='CPU'

        	 [[{{node p}}]]"#]],
    )?;
    check_gpu(
        "p = Placeholder() @/device:GPU:0",
        true,
        expect!["p: (Placeholder): /job:w/replica:0/task:0/device:CPU:0 [soft placement]"],
    )
}

#[test]
fn groups_that_no_device_satisfies_are_refused() -> Result<()> {
    let text = "v = VarHandleOp() @/job:ps/task:0/device:GPU:0
         k = Const()
         as = AssignVariableOp(v, k) @/job:worker/task:1";
    check(
        text,
        expect![[r#"
        InvalidArgument: Cannot assign a device for operation as: Could not satisfy explicit device specification '/job:worker/task:1' because the node {{colocation_node as}} was colocated with a group of nodes that required incompatible device '/job:ps/task:0/device:GPU:0'. All available devices [/job:ps/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:1/device:CPU:0]. 
        Colocation Debug Info:
        Colocation group had the following types and supported devices: 
        Root Member(assigned_device_name_index_=-1 requested_device_name_='/job:ps/task:0/device:GPU:0' assigned_device_name_='' resource_device_name_='/job:ps/task:0/device:GPU:0' supported_device_types_=[CPU] possible_devices_=[]
        VarHandleOp: CPU 
        AssignVariableOp: CPU 

        Colocation members, user-requested devices, and framework assigned devices, if any:
          v (VarHandleOp) /job:ps/task:0/device:GPU:0
          as (AssignVariableOp) /job:worker/task:1

        	 [[{{node as}}]]"#]],
    )?;
    check_soft(
        text,
        expect![[r#"
        v: (VarHandleOp): /job:ps/replica:0/task:0/device:CPU:0 [soft placement]
        k: (Const): /job:ps/replica:0/task:0/device:CPU:0 [where its consumer as is]
        as: (AssignVariableOp): /job:ps/replica:0/task:0/device:CPU:0 [shares state with v]
        warning: Failed to place the graph without changing the devices of some resources. Some of the operations (that had to be colocated with resource generating operations) are not supported on the resources' devices. Current candidate devices are [
          /job:ps/replica:0/task:0/device:CPU:0].
        See below for details of this colocation group:
        Colocation Debug Info:
        Colocation group had the following types and supported devices: 
        Root Member(assigned_device_name_index_=-1 requested_device_name_='/job:ps/task:0/device:GPU:0' assigned_device_name_='' resource_device_name_='/job:ps/task:0/device:GPU:0' supported_device_types_=[CPU] possible_devices_=[]
        VarHandleOp: CPU 
        AssignVariableOp: CPU 

        Colocation members, user-requested devices, and framework assigned devices, if any:
          v (VarHandleOp) /job:ps/task:0/device:GPU:0
          as (AssignVariableOp) /job:worker/task:1
    "#]],
    )
}

#[test]
fn soft_placement_moves_state_only_as_a_last_resort() -> Result<()> {
    let text = "v = VarHandleOp() @/task:1/device:GPU:1\nk = Const()\nas = AssignVariableOp(v, k)";
    check_gpu(
        text,
        false,
        expect![[r#"
        InvalidArgument: Cannot assign a device for operation as: Could not satisfy explicit device specification '' because the node {{colocation_node as}} was colocated with a group of nodes that required incompatible device '/task:1/device:GPU:1'. All available devices [/job:w/replica:0/task:0/device:CPU:0, /job:w/replica:0/task:0/device:GPU:0, /job:w/replica:0/task:0/device:GPU:1, /job:w/replica:0/task:1/device:CPU:0, /job:w/replica:0/task:1/device:GPU:0, /job:w/replica:0/task:1/device:GPU:1]. 
        Colocation Debug Info:
        Colocation group had the following types and supported devices: 
        Root Member(assigned_device_name_index_=-1 requested_device_name_='/task:1/device:GPU:1' assigned_device_name_='' resource_device_name_='/task:1/device:GPU:1' supported_device_types_=[CPU] possible_devices_=[]
        VarHandleOp: GPU CPU 
        AssignVariableOp: CPU 

        Colocation members, user-requested devices, and framework assigned devices, if any:
          v (VarHandleOp) /task:1/device:GPU:1
          as (AssignVariableOp) 

        	 [[{{node as}}]]"#]],
    )?;
    check_gpu(
        text,
        true,
        expect![[r#"
        v: (VarHandleOp): /job:w/replica:0/task:1/device:CPU:0 [soft placement]
        k: (Const): /job:w/replica:0/task:1/device:CPU:0 [where its consumer as is]
        as: (AssignVariableOp): /job:w/replica:0/task:1/device:CPU:0 [shares state with v]
        warning: Failed to place the graph without changing the devices of some resources. Some of the operations (that had to be colocated with resource generating operations) are not supported on the resources' devices. Current candidate devices are [
          /job:w/replica:0/task:1/device:CPU:0].
        See below for details of this colocation group:
        Colocation Debug Info:
        Colocation group had the following types and supported devices: 
        Root Member(assigned_device_name_index_=-1 requested_device_name_='/task:1/device:GPU:1' assigned_device_name_='' resource_device_name_='/task:1/device:GPU:1' supported_device_types_=[CPU] possible_devices_=[]
        VarHandleOp: GPU CPU 
        AssignVariableOp: CPU 

        Colocation members, user-requested devices, and framework assigned devices, if any:
          v (VarHandleOp) /task:1/device:GPU:1
          as (AssignVariableOp) 
    "#]],
    )
}

#[test]
fn assigned_devices_are_kept() -> Result<()> {
    let graph = graph_of("v = VariableV2() @/job:ps\nk = Const()\nas = Assign(v, k)\ni = Identity(k) [as]")?;
    let set = small_cluster()?;
    let of = |name: &str, at: &str| -> Result<String> {
        let assigned = [(graph.find(name).ok_or("no node")?, device(at)?)];
        let request = PlaceRequest {
            devices: &set,
            kernels: &KERNELS,
            allow_soft_placement: false,
            assigned: &assigned,
        };
        Ok(match place(&graph, &request) {
            Ok(placement) => placement.log(&graph).collect::<Vec<_>>().join("\n"),
            Err(error) => format!("{:?}: {error}", error.code()),
        })
    };
    expect![[r#"
        v: (VariableV2): /job:worker/replica:0/task:1/device:CPU:0 [placed before]
        k: (Const): /job:worker/replica:0/task:1/device:CPU:0 [where its consumer as is]
        as: (Assign): /job:worker/replica:0/task:1/device:CPU:0 [shares state with v]
        i: (Identity): /job:worker/replica:0/task:1/device:CPU:0 [colocated with v]"#]]
    .assert_eq(&of("v", "worker:1/CPU:0")?);
    expect![[r#"
        Internal: Assigned device '/job:gone/replica:0/task:0/device:CPU:0' does not match any device. Devices: [/job:ps/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:1/device:CPU:0]
        	 [[{{node v}}]]"#]].assert_eq(&of("v", "gone:0/CPU:0")?);
    Ok(())
}

#[test]
fn an_empty_device_set_is_refused() -> Result<()> {
    expect!["FailedPrecondition: No devices are registered"].assert_eq(&outcome(
        "a = NoOp()",
        &DeviceSet::new([]),
        &KERNELS,
        false,
    )?);
    Ok(())
}

#[test]
fn placement_is_applied_and_deterministic() -> Result<()> {
    let mut graph = graph_of("a = Const() @/job:ps\nb = Identity(a)")?;
    let set = small_cluster()?;
    let request =
        PlaceRequest { devices: &set, kernels: &KERNELS, allow_soft_placement: false, assigned: &[] };
    let placement = place(&graph, &request)?;
    placement.apply(&mut graph);
    let devices: Vec<&str> = graph.nodes().map(|(_, n)| &*n.device).collect();
    assert_eq!(
        devices,
        ["/job:ps/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0"]
    );
    let again = place(&graph, &request)?;
    assert_eq!(again.indices(), placement.indices());
    assert_eq!(anabranch_placer::placed_devices(&graph, &set)?, placement.indices());
    Ok(())
}
