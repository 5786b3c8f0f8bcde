//! Builders of variables behind resource handles.

use super::Scope;
use crate::dtype::DType;
use crate::graph::{NodeId, Output};
use crate::shape::PartialShape;

impl Scope {
    /// Adds a `VarHandleOp` node called `name`, and returns the handle of the variable with the node's name. The
    /// variable exists from its first assignment on.
    pub fn var_handle(&self, name: &str, dtype: DType, shape: impl Into<PartialShape>) -> Output {
        let call = self.op("VarHandleOp").name(name).attr("dtype", dtype).attr("shape", shape.into());
        let handle = call.output();
        let build = &mut *self.build.borrow_mut();
        if build.error.is_none() {
            // The attribute is set after the node is added, because the node's full name is known only then, and
            // TensorFlow takes the variable's name from this attribute alone.
            let node = build.graph.node_mut(handle.node);
            let name = node.name.to_string();
            node.attrs.set("shared_name", name);
        }
        handle
    }

    /// Returns the variable's value.
    pub fn read_variable(&self, handle: Output, dtype: DType) -> Output {
        self.op("ReadVariableOp").input(handle).attr("dtype", dtype).output()
    }

    /// Assigns a value to the variable.
    pub fn assign_variable(&self, handle: Output, value: Output) -> NodeId {
        self.op("AssignVariableOp").input(handle).input(value).node()
    }

    /// Adds a value to the variable.
    pub fn assign_add_variable(&self, handle: Output, value: Output) -> NodeId {
        self.op("AssignAddVariableOp").input(handle).input(value).node()
    }

    /// Subtracts a value from the variable.
    pub fn assign_sub_variable(&self, handle: Output, value: Output) -> NodeId {
        self.op("AssignSubVariableOp").input(handle).input(value).node()
    }

    /// Returns whether the variable has a value, as a boolean scalar.
    pub fn var_is_initialized(&self, handle: Output) -> Output {
        self.op("VarIsInitializedOp").input(handle).output()
    }

    /// Returns the shape of the variable's value, as an `int32` vector.
    pub fn variable_shape(&self, handle: Output) -> Output {
        self.op("VariableShape").input(handle).output()
    }

    /// Returns the variable's rows at `indices`.
    pub fn resource_gather(&self, handle: Output, indices: Output, dtype: DType) -> Output {
        self.op("ResourceGather").input(handle).input(indices).attr("dtype", dtype).output()
    }

    /// Destroys the resource behind the handle.
    pub fn destroy_resource(&self, handle: Output) -> NodeId {
        self.op("DestroyResourceOp").input(handle).node()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;

    #[test]
    fn a_handle_has_the_full_node_name_as_shared_name() -> Result<()> {
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
