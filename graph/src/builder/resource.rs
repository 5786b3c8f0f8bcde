//! Builders of variables behind handles.

use super::Scope;
use crate::dtype::DType;
use crate::graph::{NodeId, Output};
use crate::shape::PartialShape;

impl Scope {
    /// A handle of the variable that has the node's name. The variable exists from its first assignment on.
    pub fn var_handle(&self, name: &str, dtype: DType, shape: impl Into<PartialShape>) -> Output {
        let call = self.op("VarHandleOp").name(name).attr("dtype", dtype).attr("shape", shape.into());
        let handle = call.output();
        let build = &mut *self.build.borrow_mut();
        if build.error.is_none() {
            // Set late: only now is the node's full name known, and TensorFlow takes the name from here alone.
            let node = build.graph.node_mut(handle.node);
            let name = node.name.to_string();
            node.attrs.set("shared_name", name);
        }
        handle
    }

    pub fn read_variable(&self, handle: Output, dtype: DType) -> Output {
        self.op("ReadVariableOp").input(handle).attr("dtype", dtype).output()
    }

    pub fn assign_variable(&self, handle: Output, value: Output) -> NodeId {
        self.op("AssignVariableOp").input(handle).input(value).node()
    }

    pub fn assign_add_variable(&self, handle: Output, value: Output) -> NodeId {
        self.op("AssignAddVariableOp").input(handle).input(value).node()
    }

    pub fn assign_sub_variable(&self, handle: Output, value: Output) -> NodeId {
        self.op("AssignSubVariableOp").input(handle).input(value).node()
    }

    /// A boolean scalar.
    pub fn var_is_initialized(&self, handle: Output) -> Output {
        self.op("VarIsInitializedOp").input(handle).output()
    }

    /// The shape of the variable's value, a vector of `int32`.
    pub fn variable_shape(&self, handle: Output) -> Output {
        self.op("VariableShape").input(handle).output()
    }

    /// The variable's rows at `indices`.
    pub fn resource_gather(&self, handle: Output, indices: Output, dtype: DType) -> Output {
        self.op("ResourceGather").input(handle).input(indices).attr("dtype", dtype).output()
    }

    pub fn destroy_resource(&self, handle: Output) -> NodeId {
        self.op("DestroyResourceOp").input(handle).node()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;

    #[test]
    fn a_handle_is_shared_by_its_full_name() -> Result<()> {
        let s = Scope::new();
        let inner = s.name_scope("layer");
        let handle = inner.var_handle("w", DType::Float, [2, 3]);
        let read = inner.read_variable(handle, DType::Float);
        assert_eq!(s.shape(read), PartialShape::from([2, 3]));
        assert_eq!(s.finish()?.node(handle.node).attr::<String>("shared_name")?, "layer/w");
        s.read_variable(handle, DType::Int32);
        assert!(s.finish().is_err());
        Ok(())
    }
}
