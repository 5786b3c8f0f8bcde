//! Stacks have no builders: gradients of loops add them.
