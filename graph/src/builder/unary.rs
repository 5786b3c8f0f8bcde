//! Functions of one operand, element by element, and the element-wise parts of their gradients.
