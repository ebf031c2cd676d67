"""What others published of models and kernels on NPUs, beside this project's predictions."""
