"""Small trainings into which one fault is put, as users would run and break them."""
